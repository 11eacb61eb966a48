"""`feedline bench load`: a service, its own or one that runs, under steps or up to its plateau."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from services.bench.load import arrivals, report
from services.bench.load.arrivals import Plan, Step
from services.bench.load.client import Call, GrpcAsk, calls_to, record_histories
from services.bench.load.measure import BUDGET_MS, Figures, figures, over_time
from services.bench.load.mix import Mix, Requests
from services.bench.load.plateau import Sweep, plateau_of, sweep
from services.bench.load.run import MAX_OUTSTANDING, Measured, Probe, run_steps
from services.bench.load.service import Started, pin_self, started
from services.bench.load.shop import Shop, of_console, of_snapshots
from services.bench.load.usage import usage_of
from services.errors import StartError

_SETTLE_S = 0.5
_USERS = 200
_BOUGHT = 12
"""Users whom a service of its own gets histories of, and purchases of each."""


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What is measured. `target` None: a service is started over `snapshots`. Else items come from `console`, where
    given, or from `snapshots`, and `users` are those whose histories that service knows.

    Exactly one of `steps`, `moments` (arrivals, seconds) and `plateau` says the load. `pid`: of the running service.
    """

    snapshots: Path
    target: str | None = None
    console: str | None = None
    config: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)
    pid: int | None = None
    users: tuple[str, ...] = ()
    mix: Mix = field(default_factory=Mix)
    steps: tuple[Step, ...] = ()
    moments: tuple[float, ...] = ()
    plateau: Sweep | None = None
    warm_up_s: float = 2.0
    budget_ms: float = BUDGET_MS
    deadline_ms: float = 500.0
    channels: int = 4
    max_outstanding: int = MAX_OUTSTANDING
    seed: int = 1
    pin_service: int | None = None
    pin_generator: int | None = None


@dataclass(frozen=True, slots=True)
class _Load:
    options: LoadOptions
    calls: Sequence[Call]
    requests: Requests
    probe: Probe | None

    async def put(self, plan: Plan) -> tuple[Measured, int]:
        """The plan's samples, and how many next pages had to be first ones."""
        options = self.options
        ask = GrpcAsk(self.calls, self.requests.draw(len(plan.at)), deadline_s=options.deadline_ms / 1e3)
        measured = await run_steps(ask, plan, probe=self.probe, max_outstanding=options.max_outstanding)
        return measured, ask.without_token

    async def step(self, step: Step) -> Figures:
        """The figures of one step by itself; the next one finds the service idle."""
        measured, without = await self.put(arrivals.poisson([step], self.options.seed))
        (found,) = figures(measured, budget_ms=self.options.budget_ms)
        await asyncio.sleep(_SETTLE_S)
        return found | {"next_pages_asked_as_first": without}


def run(options: LoadOptions, command: str) -> dict[str, Any]:
    """`load` on an event loop of its own, as `run_interruptible` does."""
    return run_interruptible(load(options, command))


def run_interruptible(measuring: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    """Runs on an event loop of its own. SIGTERM ends it as Ctrl-C does, the service with it: KeyboardInterrupt."""
    try:
        return uvloop.run(_interruptible(measuring))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def load(options: LoadOptions, command: str) -> dict[str, Any]:
    """Measures; the report as JSON. Raises StartError naming what is missing or wrong."""
    if options.target is not None and options.pin_service is not None:
        raise StartError("pin-service: only a service that is started here can be pinned")
    async with AsyncExitStack() as stack:
        shop = await of_console(options.console) if options.console else of_snapshots(options.snapshots)
        head = report.head(command)
        service = None
        if options.target is None:
            own = started(options.snapshots, settings=options.settings, config=options.config, cpu=options.pin_service)
            service = await stack.enter_async_context(own)
        if options.pin_generator is not None:
            pin_self(options.pin_generator)
        target = service.target if service else options.target or ""
        users = await _with_histories(service, options, shop) if service else options.users
        pid = service.pid if service else options.pid
        if pid is not None:
            usage_of(pid)
        calls = await stack.enter_async_context(calls_to(target, options.channels))
        requests = Requests(shop, options.mix, users=users, seed=options.seed)
        probe = partial(usage_of, pid) if pid is not None else None
        about = {
            "target": target,
            "service": "started here" if service else "was running",
            "ready_s": service.ready_s if service else None,
            "settings": options.settings,
            "pinned": {"service": options.pin_service, "generator": options.pin_generator},
            "snapshot_id": shop.snapshot_id,
            "synthetic": shop.synthetic,
            "items": len(shop),
            "users_with_a_history": len(users),
            "mix": options.mix.model_dump(),
            "seed": options.seed,
            "budget_ms": options.budget_ms,
            "deadline_ms": options.deadline_ms,
            "channels": options.channels,
            "max_outstanding": options.max_outstanding,
        }
        return {**head, **about, **await _measured(_Load(options, calls, requests, probe))}


async def _interruptible(measuring: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    task = asyncio.current_task()
    assert task is not None, "called within a task"
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await measuring


async def _measured(one: _Load) -> dict[str, Any]:
    """Steps one after the other, or a sweep."""
    options = one.options
    if options.plateau is not None:
        if options.warm_up_s:
            await one.step(Step(options.plateau.start, options.warm_up_s))
        steps = await sweep(one.step, options.plateau)
        return _result(steps, plateau=plateau_of(steps))
    if options.moments:
        plan = arrivals.given(options.moments)
        if options.warm_up_s:
            await one.step(Step(plan.steps[0].qps, options.warm_up_s))
    else:
        warm_up = [Step(options.steps[0].qps, options.warm_up_s, counted=False)] if options.warm_up_s else []
        plan = arrivals.poisson([*warm_up, *options.steps], options.seed)
    measured, without = await one.put(plan)
    steps = figures(measured, budget_ms=options.budget_ms)
    return _result(steps, next_pages_asked_as_first=without, over_time=over_time(measured, budget_ms=options.budget_ms))


def _result(steps: list[Figures], **more: object) -> dict[str, Any]:
    return {"generator_bound": any(step["generator_bound"] for step in steps), "steps": steps, **more}


async def _with_histories(service: Started, options: LoadOptions, shop: Shop) -> tuple[str, ...]:
    """Users whose purchases the service has just been told."""
    if not options.mix.histories:
        return ()
    users = tuple(f"load-user-{number}" for number in range(_USERS))
    bought = Requests(shop, options.mix, seed=options.seed + 1).items(_USERS * _BOUGHT)
    await record_histories(service.target, users, [bought[at::_USERS] for at in range(_USERS)])
    return users
