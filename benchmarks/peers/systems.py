"""The systems: how each is started, asked and ended. Feedline over gRPC, the others over HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import uuid
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.peers.http_ask import HttpAsk, answer_of, post
from benchmarks.peers.serving import Serving, environment_of
from protos import feed_pb2
from services.bench.load.ask import Ask
from services.bench.load.client import GrpcAsk, calls_to
from services.bench.load.mix import Asked
from services.bench.load.service import pinned, started
from services.errors import StartError

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]
FEEDLINE = "feedline"
CHANNELS = 4
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
_MARK = "PEER_RUN"
_READY_S = 240.0
_POLITE_S = 15.0


@dataclass(frozen=True, slots=True)
class System:
    """A server and its package. `command`: by its folder of programs and how it is to be run. `listed`: a question is
    sent as a list of one. `helped`: with a door and a time-out that the server does not have itself."""

    name: str
    package: str
    command: Callable[[Path, Serving], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    listed: bool = False
    helped: bool = False


def _uvicorn(programs: Path, serving: Serving) -> Sequence[str]:
    limit = () if serving.helped else ("--limit-concurrency", str(serving.door))
    app = "benchmarks.peers.fastapi_server:app"
    quiet = ("--no-access-log", "--log-level", "warning")
    return (str(programs / "uvicorn"), app, "--port", str(serving.port), *quiet, *limit)


def _module(name: str) -> Callable[[Path, Serving], Sequence[str]]:
    return lambda programs, _: (str(programs / "python"), "-m", f"benchmarks.peers.{name}")


def _bentoml(programs: Path, serving: Serving) -> Sequence[str]:
    service = "benchmarks.peers.bentoml_server:Feed"
    return (str(programs / "bentoml"), "serve", service, "--host", "127.0.0.1", "--port", str(serving.port))


_RAY = {
    # https://docs.ray.io/en/latest/serve/advanced-guides/performance.html#enable-throughput-optimized-flags
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}

PEERS = {
    each.name: each
    for each in (
        System("fastapi", "fastapi", _uvicorn),
        System("fastapi+door", "fastapi", _uvicorn, helped=True),
        System("litserve", "litserve", _module("litserve_server")),
        System("litserve+door", "litserve", _module("litserve_server"), helped=True),
        System("bentoml", "bentoml", _bentoml, {"BENTOML_DO_NOT_TRACK": "true"}, listed=True),
        System("ray", "ray", _module("ray_server"), _RAY),
    )
}


@dataclass(frozen=True, slots=True)
class Running:
    """A system that answers. `ids`: the item ids of its answer to a question, in order."""

    ask: Ask
    ids: Callable[[int], Awaitable[list[str]]]
    pid: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where it all runs: the snapshots, the virtual environment of the peers, the one CPU of the service."""

    snapshots: Path
    programs: Path
    cpu: int | None
    deadline_s: float


@asynccontextmanager
async def running(
    name: str, place: Place, questions: Sequence[Asked], *, batch: int, door: int, within_s: float
) -> AsyncIterator[Running]:
    """The system, ready and pinned to its CPU; ended with all its processes when left.

    Raises StartError with its last words when it does not get ready.
    """
    if name == FEEDLINE:
        async with _feedline(place, questions, batch=batch, door=door) as one:
            yield one
        return
    system = PEERS[name]
    serving = Serving(place.snapshots.absolute(), _free_port(), batch, door, within_s, system.helped)
    requests = [post("/rank", body(one.message, listed=system.listed)) for one in questions]
    with TemporaryDirectory(prefix="feedline-peers-") as folder:
        log = Path(folder) / "server.log"
        mark = uuid.uuid4().hex
        environment = {
            **os.environ,
            **ONE_THREAD,
            **system.environment,
            **environment_of(serving),
            _MARK: mark,
            "PATH": f"{place.programs}:{os.environ.get('PATH', '')}",
        }
        with log.open("wb") as out, pinned(place.cpu):
            process = await asyncio.create_subprocess_exec(
                *system.command(place.programs, serving),
                stdin=DEVNULL, stdout=out, stderr=out, env=environment, cwd=CHECKOUT, start_new_session=True,
            )  # fmt: skip
        ask = HttpAsk(serving.port, requests, deadline_s=place.deadline_s)
        try:
            await _until_ready(process, ask, log)

            async def ids(index: int) -> list[str]:
                response = await ask.fetch(index)
                return [str(item) for item in answer_of(response.body)["items"]]

            yield Running(ask, ids, process.pid)
        finally:
            ask.close()
            await _end(process, mark)


@asynccontextmanager
async def _feedline(place: Place, questions: Sequence[Asked], *, batch: int, door: int) -> AsyncIterator[Running]:
    settings = {**ONE_THREAD, "FEEDLINE_SCORING__MAX_BATCH": str(batch), "FEEDLINE_SCORING__MAX_IN_FLIGHT": str(door)}
    config = HERE / "feedline.toml"
    async with (
        started(place.snapshots, settings=settings, config=config, cpu=place.cpu) as service,
        calls_to(service.target, CHANNELS) as calls,
    ):

        async def ids(index: int) -> list[str]:
            data = await calls[0](questions[index].message.SerializeToString(), timeout=10)
            return [item.item_id for item in feed_pb2.GetFeedResponse.FromString(data).items]

        yield Running(GrpcAsk(calls, questions, deadline_s=place.deadline_s), ids, service.pid)


def body(message: feed_pb2.GetFeedRequest, *, listed: bool) -> bytes:
    """The question as JSON: the fields of `two_stages.Asked`."""
    asked = {
        "items": [event.item_id for event in message.recent_events],
        "types": [int(event.type) for event in message.recent_events],
        "category": message.category,
        "region": message.region,
        "size": message.page_size,
    }
    return json.dumps({"asked": [asked]} if listed else asked, separators=(",", ":")).encode()


async def _until_ready(process: asyncio.subprocess.Process, ask: HttpAsk, log: Path) -> None:
    """Until a question is answered. Raises StartError."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_READY_S):
            while process.returncode is None:
                with suppress(OSError):
                    if (await ask.fetch(0)).status == 200:
                        return
                await asyncio.sleep(0.2)
    last = "\n".join(await asyncio.to_thread(_last_lines, log))
    ended = "" if process.returncode is None else f" (it ended with status {process.returncode})"
    raise StartError(f"{process.pid}: not ready{ended}; its last words:\n{last}")


def _last_lines(log: Path) -> list[str]:
    return log.read_bytes().decode(errors="replace").splitlines()[-12:]


async def _end(process: asyncio.subprocess.Process, mark: str) -> None:
    """Politely first; then all processes that were started with the mark, wherever they went."""
    if process.returncode is None:
        process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLITE_S):
                await process.wait()
    while pids := await asyncio.to_thread(left_behind, process.pid, f"{_MARK}={mark}".encode()):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.05)
    await process.wait()


def left_behind(session: int, mark: bytes) -> list[int]:
    """Living processes of the session that the server began, and those that left it but have its mark in their
    environment. Either by itself would miss some: one that changes its title writes over its environment.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # It ended meanwhile, or is somebody else's.
                state, _, _, of_session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                marked = mark in (entry / "environ").read_bytes().split(b"\0")
                if state not in {"Z", "X"} and (of_session == str(session) or marked):
                    found.append(int(entry.name))
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
