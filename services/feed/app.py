"""The only wiring: what is made, in which order it starts, and in reverse how it stops."""

from __future__ import annotations

import asyncio
import gc
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass

import structlog
import uvloop

from cache.breaker import Breaker
from cache.embedded import ServerEvent
from cache.feed_cache import CachePolicy, FeedCache
from cache.redis_link import RedisLink, open_client
from cache.redis_tier import RedisTier
from cache.tier import LocalTier, TierUnavailable, Unavailability
from indexer.contract.cuda import NoCuda, require_onnx
from services import logs
from services.console.app import create_console
from services.console.health import Readiness
from services.console.server import ConsoleServer
from services.errors import StartError
from services.feed.admission import Gate
from services.feed.batcher import Batcher, Stages
from services.feed.event_stream import EventStream, check_state_server
from services.feed.gpu import Gpu
from services.feed.gpu_retrieval import OnGpu
from services.feed.limit import AdaptiveLimit, FixedLimit, Limit, LimitSpec
from services.feed.live import Live
from services.feed.loading import Loader
from services.feed.member import Member
from services.feed.page import FeedLine, PagePolicy
from services.feed.ranking import Rankings
from services.feed.rerank import rerank, retrieve
from services.feed.servers import GrpcServer
from services.feed.servicer import FeedServicer
from services.feed.sessions import SessionStore
from services.feed.slate_rules import Rules
from services.feed.state_keys import StateKeys
from services.metrics import Metrics
from services.settings import Serve, Settings, check_binds
from services.state import state_server

log = structlog.get_logger()
_FIRST_LIMIT = 16
"""Full scorings in flight before adaptive admission has learned better."""


@dataclass(frozen=True)
class FeedApp:
    """A running service: its ports (`console_port` 0: none) and what tests and the console look at."""

    grpc_port: int
    console_port: int
    live: Live
    servicer: FeedServicer
    gate: Gate
    batcher: Batcher
    cache: FeedCache
    metrics: Metrics
    state_url: str


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Raises StartError when it cannot start."""
    logs.configure(settings.log)
    uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_app(settings) as app:
        log.info("ready", grpc_port=app.grpc_port, console_port=app.console_port)
        await stop.wait()
        log.info("draining", lame_duck_s=settings.serve.lame_duck_s, drain_s=settings.serve.drain_s)
    log.info("stopped")


@asynccontextmanager
async def open_app(
    settings: Settings, *, now: Callable[[], float] | None = None, member: Member | None = None
) -> AsyncIterator[FeedApp]:
    """The whole service, ready when entered and drained when left.

    `now`: Unix time in seconds, by which events happen and histories age; None: as the settings say. `member`: it is
    one of several that share the port; None: it is alone.
    """
    check_binds(settings)
    now = now or settings.serve.now
    metrics = Metrics()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(state_server(settings.state, _embedded_observer(metrics)))
        state = _link(stack, url, settings.state.pool, settings.state.timeout_ms, metrics, "state")
        cache = _cache(stack, settings, url, metrics)
        keys = StateKeys(f"{settings.state.prefix}:")
        sessions = SessionStore(
            state,
            keys,
            max_events=settings.state.session_events,
            lifetime_s=settings.state.session_s,
            history_items=settings.state.history_items,
            history_lifetime_s=settings.state.history_s,
        )
        stream = EventStream(
            state,
            keys,
            sessions,
            event_lifetime_s=settings.state.event_id_s,
            max_stream_length=settings.state.max_stream_length,
            timeout_s=settings.state.write_timeout_ms / 1e3,
        )
        loader = Loader(
            exact_below=settings.serve.exact_scan_items,
            threads=settings.scoring.threads,
            cascade=settings.scoring.cascade,
            observe_strong=lambda how, count: metrics.strong.labels(how).inc(count),
            on_gpu=_on_gpu(stack, settings),
            cuda=_cuda(settings),
        )
        turn = member.turn if member else nullcontext
        live = Live(settings.snapshots.folder, loader, metrics, drain_s=_drain_s(settings), turn=turn)
        gate = _gate(settings, metrics)
        batcher = _batcher(stack, settings, metrics)
        policy = _policy(settings)
        rankings = Rankings(
            cache=cache,
            gate=gate,
            batcher=batcher,
            scoring_s=policy.budget_s - policy.reserve_s,
            mode=settings.retrieval.mode,
            clock=time.monotonic,
        )
        line = FeedLine(policy, live, sessions, rankings, now=now)
        servicer = FeedServicer(line, stream, metrics, page_size=settings.serve.page_size, now=now)

        if member:  # A shared port has callers as soon as one more listens on it.
            await asyncio.to_thread(live.load_at_start)
        grpc_server = await stack.enter_async_context(
            GrpcServer.open(settings.serve, servicer, shares_port=member is not None)
        )
        console_port = 0
        if settings.console.enabled:
            console = create_console(
                servicer=servicer,
                live=live,
                readiness=lambda: _readiness(live, grpc_server),
                registry=metrics.registry,
                write_token=settings.console.write_token,
            )
            socket = member.console if member else None
            console_port = await stack.enter_async_context(
                ConsoleServer.open(settings.console, console, settings.serve.drain_s, socket)
            )

        if not member:
            await asyncio.to_thread(live.load_at_start)
            gc.freeze()  # what was loaded stays: looking through it at each full collection stalls requests
        if settings.snapshots.watch_s:
            watch = asyncio.create_task(live.watch(settings.snapshots.watch_s), name="watch-snapshots")
            stack.push_async_callback(_cancelled, watch)
        await _warn_of_state(url)
        await grpc_server.set_ready(True)
        metrics.ready.set(1)
        stack.push_async_callback(_unready, grpc_server, metrics, settings.serve)
        yield FeedApp(grpc_server.port, console_port, live, servicer, gate, batcher, cache, metrics, url)


def _drain_s(settings: Settings) -> float:
    """After so long nobody asks a snapshot any more that was swapped out: a page has ended, and what it began."""
    return 2 * settings.budget.page_ms / 1e3 + 1


def _on_gpu(stack: AsyncExitStack, settings: Settings) -> OnGpu | None:
    wanted = settings.retrieval
    if wanted.device == "cpu":
        return None
    try:
        gpu = Gpu.open(wanted.device_id, temp_mb=wanted.gpu_temp_mb)
    except NoCuda as error:
        raise StartError(f"retrieval.device: cuda: {error}") from error
    stack.callback(gpu.close)
    return OnGpu(gpu, wanted.gpu_index, wanted.gpu_slices_mb << 20)


def _cuda(settings: Settings) -> int | None:
    """The device that models run on. Raises StartError when ONNX Runtime cannot use any."""
    if settings.scoring.device == "cpu":
        return None
    try:
        require_onnx()
    except NoCuda as error:
        raise StartError(f"scoring.device: cuda: {error}") from error
    return settings.scoring.device_id


def _policy(settings: Settings) -> PagePolicy:
    budget = settings.budget
    return PagePolicy(
        budget_s=(budget.scoring_ms + budget.features_ms) / 1e3,
        features_s=budget.features_ms / 1e3,
        reserve_s=budget.fallback_ms / 1e3,
        token_key=settings.serve.page_token_key.encode()[:64],
        max_depth=settings.serve.max_page_depth,
        rules=Rules(**settings.slate.model_dump(exclude={"hide_bought"})),
        hide_bought=settings.slate.hide_bought,
    )


def _gate(settings: Settings, metrics: Metrics) -> Gate:
    scoring = settings.scoring
    limit: Limit = FixedLimit(scoring.max_in_flight)
    if scoring.admission == "adaptive":
        spec = LimitSpec(ceiling=scoring.max_in_flight, target_s=scoring.target_wait_ms / 1e3)
        limit = AdaptiveLimit(spec, start=_FIRST_LIMIT)
    gate = Gate(limit, scoring.prefetch_share)
    metrics.in_flight.set_function(lambda: gate.in_flight)
    metrics.limit.set_function(lambda: gate.limit)
    return gate


def _batcher(stack: AsyncExitStack, settings: Settings, metrics: Metrics) -> Batcher:
    scoring = settings.scoring
    batcher = Batcher(
        Stages(retrieve, rerank),
        max_queue=scoring.max_queue,
        max_batch=scoring.max_batch,
        max_pairs=scoring.max_pairs,
        max_delay_s=scoring.max_queue_delay_ms / 1e3,
        clock=time.monotonic,
        observe_batch=metrics.batch_size.observe,
        observe_drop=lambda why: metrics.dropped.labels(why).inc(),
    )
    batcher.start()
    stack.callback(batcher.close)
    return batcher


def _cache(stack: AsyncExitStack, settings: Settings, state_url: str, metrics: Metrics) -> FeedCache:
    wanted = settings.cache
    link = _link(None, wanted.url or state_url, wanted.pool, wanted.timeout_ms, metrics, "cache")
    cache = FeedCache(
        CachePolicy(enabled=wanted.enabled, soft_s=wanted.soft_s, hard_s=wanted.hard_s, jitter=wanted.jitter),
        LocalTier(wanted.local_bytes) if wanted.local_bytes else None,
        RedisTier(link, prefix=f"{wanted.prefix}:"),
        rng=random.Random(),  # noqa: S311 - jitter, not a secret
        observer=lambda event: metrics.cache_events.labels(event.name.lower()).inc(),
    )
    stack.push_async_callback(cache.close)
    return cache


def _link(
    stack: AsyncExitStack | None, url: str, pool: int, timeout_ms: float, metrics: Metrics, name: str
) -> RedisLink:
    def failed(reason: Unavailability) -> None:
        metrics.server_failures.labels(name, reason.value).inc()

    try:
        client = open_client(url, max_connections=pool)
    except ValueError as error:
        raise StartError(f"{name}.url: {error}") from error
    # One late answer is no reason to refuse events: it may be this process that was late.
    breaker = Breaker(failures_to_open=3)
    link = RedisLink(client, breaker, timeout_s=timeout_ms / 1e3, observe=failed)
    if stack is not None:
        stack.push_async_callback(link.close)
    return link


async def _warn_of_state(url: str) -> None:
    """Says what endangers recorded events; a server that is not there is met, and reported, by the requests."""
    link = RedisLink(open_client(url, max_connections=1), timeout_s=1)
    try:
        for warning in await link.call(check_state_server):
            log.warning(warning)
    except TierUnavailable as error:
        log.warning("the state server cannot be asked", error=str(error))
    finally:
        await link.close()


def _embedded_observer(metrics: Metrics) -> Callable[[ServerEvent], None]:
    def observe(event: ServerEvent) -> None:
        metrics.embedded.labels(event.value).inc()
        log.warning("embedded Valkey", event_kind=event.value)

    return observe


def _readiness(live: Live, server: GrpcServer) -> Readiness:
    loaded = live.current()
    reasons = tuple(loaded.reasons) if loaded else ("no_snapshot",)
    degraded = loaded is None or any(reason.degrades for reason in loaded.reasons)
    return Readiness(
        ready=server.ready,
        degraded=degraded,
        snapshot_id=loaded.id if loaded else "",
        reasons=reasons,
        refused=live.refusal.reason if live.refusal else "",
    )


async def _unready(server: GrpcServer, metrics: Metrics, serve: Serve) -> None:
    await server.set_ready(False)
    metrics.ready.set(0)
    await server.until_quiet(serve.lame_duck_s, serve.drain_s)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
