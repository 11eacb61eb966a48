"""`feedline serve --workers N`: what the parent has, and what each worker is told."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog
import uvloop

from cache.embedded import ServerEvent
from services import logs
from services.console.server import ConsoleServer
from services.metrics import ParentMetrics
from services.settings import Settings, check_binds
from services.state import state_server
from services.workers.console import create_console
from services.workers.orders import Orders
from services.workers.port import shared_port
from services.workers.supervisor import Workers

log = structlog.get_logger()
_OVER_DRAIN_S = 10.0


@dataclass(frozen=True)
class Parent:
    """The running service: its ports (`console_port` 0: none) and its workers."""

    grpc_port: int
    console_port: int
    workers: Workers


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, then drains all workers. Raises StartError when it cannot start."""
    logs.configure(settings.log)
    uvloop.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with open_workers(settings) as parent:
        log.info("ready", grpc_port=parent.grpc_port, console_port=parent.console_port, workers=settings.serve.workers)
        await stop.wait()
        log.info("draining", lame_duck_s=settings.serve.lame_duck_s, drain_s=settings.serve.drain_s)
    log.info("stopped")


@asynccontextmanager
async def open_workers(settings: Settings) -> AsyncIterator[Parent]:
    """State server, port and console of the parent, and `serve.workers` processes: all ready when entered, all drained
    when left. The parent itself loads no snapshot, and neither FAISS nor ONNX Runtime."""
    check_binds(settings)
    metrics = ParentMetrics()

    def observe(event: ServerEvent) -> None:
        metrics.embedded.labels(event.value).inc()
        log.warning("embedded Valkey", event_kind=event.value)

    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(state_server(settings.state, observe))
        port = stack.enter_context(shared_port(settings.serve.host, settings.serve.port))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feedline-")))
        given = _for_a_worker(settings, port, url)
        orders = [
            Orders(settings=given, console=folder / f"{number}.sock", lock=folder / "loading.lock")
            for number in range(settings.serve.workers)
        ]
        console_port = 0
        if settings.console.enabled:
            console = create_console([each.console for each in orders], metrics.registry)
            console_port = await stack.enter_async_context(
                ConsoleServer.open(settings.console, console, settings.serve.drain_s)
            )
        workers = Workers(orders, metrics, end_s=2 * settings.serve.drain_s + _OVER_DRAIN_S)
        await workers.start()
        stack.push_async_callback(workers.stop)
        yield Parent(port, console_port, workers)


def _for_a_worker(settings: Settings, port: int, state_url: str) -> Settings:
    """The settings, with the parent's port and state server; a console is there to be asked by the parent."""
    sections = {
        "serve": settings.serve.model_copy(update={"port": port, "workers": 1}),
        "state": settings.state.model_copy(update={"url": state_url}),
        "index": {},
    }
    return settings.model_copy(update=sections)
