"""A service of its own for a measurement: `feedline serve` as a child, pinned where asked, ended when left."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.demo.children import end
from services.errors import StartError

_COMMAND = (sys.executable, "-m", "services.cli", "serve")
_PREFIX = "FEEDLINE_"
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Started:
    """A service that is ready. `ready_s`: seconds from the start of its process to ready."""

    target: str
    pid: int
    ready_s: float


@asynccontextmanager
async def started(
    snapshots: Path, *, settings: Mapping[str, str], config: Path | None = None, cpu: int | None = None
) -> AsyncIterator[Started]:
    """The service over `snapshots`, on a free port of loopback, with an embedded state server of its own and no
    console. `settings` as environment variables go over all of that; `cpu`: the only one it may run on.

    Raises StartError with its last words when it ends before it is ready.
    """
    with tempfile.TemporaryDirectory(prefix="feedline-load-") as folder:
        log = Path(folder) / "serve.log"
        environment = {
            **os.environ,
            "FEEDLINE_SERVE__PORT": "0",
            "FEEDLINE_CONSOLE__ENABLED": "false",
            "FEEDLINE_STATE__FOLDER": f"{folder}/state",
            "FEEDLINE_LOG__LEVEL": "info",
            **settings,
            "FEEDLINE_LOG__FORMAT": "json",
        }
        arguments = ["--snapshots", str(snapshots), *(["--config", str(config)] if config else [])]
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with log.open("wb") as out, pinned(cpu):
            process = await asyncio.create_subprocess_exec(
                *_COMMAND, *arguments, stdin=DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
        try:
            port = await _port(process, log)
            yield Started(f"127.0.0.1:{port}", process.pid, round(loop.time() - begun, 3))
        finally:
            await end(process)


@contextmanager
def pinned(cpu: int | None) -> Iterator[None]:
    """This thread, and the processes it starts meanwhile, run on `cpu` only. Raises StartError where there is none."""
    before = os.sched_getaffinity(0)
    if cpu is not None:
        _pin((0,), cpu)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin_self(cpu: int) -> None:
    """All threads of this process run on `cpu` only. Raises StartError where there is none."""
    _pin([int(entry.name) for entry in Path("/proc/self/task").iterdir()], cpu)


def environment_of(pairs: Sequence[str]) -> dict[str, str]:
    """Environment variables of settings told as "cache.enabled=false" or "FEEDLINE_CACHE__ENABLED=false".

    Raises StartError naming the one that is neither.
    """
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not ("." in key or key.startswith(_PREFIX)):
            raise StartError(f'set: {pair!r}: expected "section.key=value"')
        found[key if key.startswith(_PREFIX) else f"{_PREFIX}{key.replace('.', '__').upper()}"] = value
    return found


def _pin(threads: Iterable[int], cpu: int) -> None:
    try:
        for thread in threads:
            os.sched_setaffinity(thread, {cpu})
    except OSError as error:
        there = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise StartError(f"CPU {cpu}: this process cannot run there ({error.strerror}); it may use {there}") from error


async def _port(process: Process, log: Path) -> int:
    """The gRPC port, out of the line with which the service says that it is ready."""
    while True:
        said = _lines(log)
        for line in said:
            if line.startswith("{") and '"event": "ready"' in line:
                return int(json.loads(line)["grpc_port"])
        if process.returncode is not None:
            last = "\n".join(said[-5:])
            raise StartError(f"the service ended with status {process.returncode} before it was ready:\n{last}")
        await asyncio.sleep(_LOOK_S)


def _lines(log: Path) -> list[str]:
    return log.read_bytes().decode(errors="replace").splitlines()
