"""The demo's child processes: `feedline` commands, each in a process group of its own, ended whatever happens."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TextIO

from services.errors import StartError

_POLITE_S = 20.0
_COMMAND = (sys.executable, "-m", "services.cli")


async def run_command(arguments: Sequence[str], *, out: TextIO) -> int:
    """Runs `feedline arguments`, its output straight to `out`; the exit code."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, *arguments, stdin=DEVNULL, stdout=out, env=_environment(), start_new_session=True
    )
    try:
        return await process.wait()
    finally:
        await end(process)


class Service:
    """A running `feedline serve`. Ports are of loopback."""

    def __init__(self, process: Process, grpc_port: int, console_port: int) -> None:
        self._process = process
        self.grpc_port = grpc_port
        self.console_port = console_port

    @property
    def target(self) -> str:
        """For a gRPC channel."""
        return f"127.0.0.1:{self.grpc_port}"

    @property
    def page(self) -> str:
        """For a browser."""
        return f"http://127.0.0.1:{self.console_port}/"

    def terminate(self) -> None:
        """SIGTERM: the service drains and ends."""
        self._process.terminate()

    async def ended(self) -> int:
        """Waits for the end; the exit code."""
        return await self._process.wait()


@asynccontextmanager
async def serving(config: Path, log: Path, *, grpc_port: int, console_port: int) -> AsyncIterator[Service]:
    """A service that is ready (port 0: a free one), ended when left. What it says is kept in `log`.

    Raises StartError with its last words when it ends before it is ready.
    """
    arguments = ("serve", "--config", str(config), "--port", str(grpc_port), "--console-port", str(console_port))
    with log.open("ab") as out:
        begins = out.tell()
        process = await asyncio.create_subprocess_exec(
            *_COMMAND, *arguments, stdin=DEVNULL, stdout=out, stderr=out,
            env=_environment(FEEDLINE_LOG__FORMAT="json", FEEDLINE_LOG__LEVEL="info"), start_new_session=True,
        )  # fmt: skip
    try:
        ready = await _ready(process, log, begins)
        yield Service(process, int(ready["grpc_port"]), int(ready["console_port"]))
    finally:
        await end(process)


async def _ready(process: Process, log: Path, begins: int) -> dict[str, str]:
    """The line with which the service says that it is ready, and on which ports."""
    while True:
        said = _lines(log, begins)
        for line in said:
            if '"event": "ready"' in line:
                ready: dict[str, str] = json.loads(line)
                return ready
        if process.returncode is not None:
            last = "\n".join(said[-5:])
            raise StartError(f"the service ended with status {process.returncode} before it was ready:\n{last}")
        await asyncio.sleep(0.05)


def _lines(log: Path, begins: int) -> list[str]:
    return log.read_bytes()[begins:].decode(errors="replace").splitlines()


async def end(process: Process) -> None:
    """Ends a process and its group: SIGTERM, and SIGKILL for what is left after 20 s. A cancel waits for it, too."""
    stopping = asyncio.ensure_future(_end(process))
    try:
        await asyncio.shield(stopping)
    except asyncio.CancelledError:
        await stopping
        raise


async def _end(process: Process) -> None:
    if process.returncode is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(_POLITE_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _environment(**more: str) -> dict[str, str]:
    """Nothing is fetched: the encoder lies in an installed package."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1", **more}
