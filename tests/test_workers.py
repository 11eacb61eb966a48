"""Several processes behind one port: the real command, its workers, their one console."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from protos import feed_pb2
from services.client import FeedClient
from services.errors import StartError
from services.settings import Settings, check_binds
from services.workers.console import merged
from services.workers.port import shared_port
from tests.feed.conftest import viewed
from tests.feed.process import ready
from tests.snapshots import Shop, publish_shop
from tests.waiting import until

WORKERS = 2


@asynccontextmanager
async def serving(folder: Path, **more: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str, str]]:
    """`feedline serve --workers 2` over a snapshot of 1,000 items: the parent, its target, its console's address."""
    publish_shop(folder / "snapshots", Shop())
    settings = {
        "SERVE__PORT": "0", "SERVE__LAME_DUCK_S": "0.3", "SERVE__PAGE_TOKEN_KEY": "kept from arguments",
        "CONSOLE__PORT": "0", "SNAPSHOTS__FOLDER": str(folder / "snapshots"), "SNAPSHOTS__WATCH_S": "0.1",
        "STATE__FOLDER": str(folder / "valkey"), "LOG__FORMAT": "json", "BUDGET__PAGE_MS": "2000", **more,
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli", "serve", "--workers", str(WORKERS),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"} | {f"FEEDLINE_{name}": value for name, value in settings.items()},
    )  # fmt: skip
    try:
        grpc_port, console_port = await ready(process)
        assert process.stderr is not None
        drained = asyncio.create_task(process.stderr.read())  # a full pipe would stop it
        yield process, f"127.0.0.1:{grpc_port}", f"http://127.0.0.1:{console_port}"
        drained.cancel()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def mapped_by(pid: int) -> list[str]:
    """Files that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text().splitlines()


def any_lives(pids: list[int]) -> bool:
    """Whether one of the processes is still there."""
    return any(Path(f"/proc/{pid}").exists() for pid in pids)


def workers_of(parent: int) -> list[int]:
    """The worker processes of a parent."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"services.workers.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


async def shared_out(target: str, calls: int, *, connections: int = 16, **fields: Any) -> list[str]:
    """Snapshots of so many pages, asked over several connections."""
    async with FeedClient(target, connections=connections, timeout_s=20) as client:
        request = feed_pb2.GetFeedRequest(recent_events=[viewed("i5")], **fields)
        pages = await asyncio.gather(*(client.get_feed(request) for _ in range(calls)))
    assert all(len(page.items) == 20 for page in pages)
    return [page.provenance.snapshot_id for page in pages]


async def samples(console: str) -> dict[tuple[str, str], float]:
    """Sums of the samples of /metrics by name and worker."""
    async with httpx.AsyncClient() as web:
        text = (await web.get(f"{console}/metrics", timeout=30)).text
    out: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, sample.labels.get("worker", "")
            out[key] = out.get(key, 0.0) + sample.value
    return out


async def is_ready(console: str) -> bool:
    async with httpx.AsyncClient() as web:
        return (await web.get(f"{console}/readyz", timeout=30)).status_code == 200


async def test_workers_share_the_load_behind_one_port_and_one_console(tmp_path: Path) -> None:
    async with serving(tmp_path) as (parent, target, console):
        await shared_out(target, 160)
        seen = await samples(console)
        each = [seen.get(("feedline_pages_total", str(number)), 0) for number in range(WORKERS)]
        assert sum(each) == 160
        assert min(each) > 0  # sixteen connections that all went to one worker: once in 32,768 runs
        assert seen["feedline_workers_running", ""] == WORKERS

        async with httpx.AsyncClient(base_url=console, timeout=30) as web:
            page = await web.post("/v1/feed", json={"recent_events": [{"item_id": "i5", "type": "view"}]})
            assert page.status_code == 200
            assert len(page.json()["items"]) == 20
            assert (await web.get("/")).headers["content-security-policy"]
            assert (await web.get("/v1/items?id=i7")).json()["items"][0]["item_id"] == "i7"
            bad = await web.post("/v1/feed", json={"page_size": -1})
            assert (bad.status_code, bad.json()["error"]["field"]) == (400, "page_size")
            assert (await web.post("/v1/feed", content=b" " * 70_000)).status_code == 413
            told = (await web.get("/readyz")).json()
            assert told["ready"]
            assert [one["ready"] for one in told["workers"]] == [True] * WORKERS

            event = {"event_id": "e1", "item_id": "i9", "type": "view"}
            answers = [await web.post("/v1/events", json={"session_id": "s1", "events": [event]}) for _ in range(2)]
            assert [one.json()["stored"] for one in answers] == [1, 0]  # one state server behind both workers
        assert parent.returncode is None


async def test_workers_are_spawned_and_know_no_secret_by_argument_or_environment(tmp_path: Path) -> None:
    """facebookresearch/faiss#5206: a process that is forked after FAISS was loaded hangs."""
    async with serving(tmp_path) as (parent, _, _):
        pids = workers_of(parent.pid)
        assert len(pids) == WORKERS
        for pid in pids:
            process = Path(f"/proc/{pid}")
            assert process.joinpath("cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", b"services.workers.worker"]
            assert b"kept from arguments" not in (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            assert any("libfaiss" in line for line in mapped_by(pid))
        assert not any("libfaiss" in line or "onnxruntime" in line for line in mapped_by(parent.pid))


async def test_workers_share_vectors_and_index(tmp_path: Path) -> None:
    """Mapped, not copied: the same pages of the same files."""
    async with serving(tmp_path) as (parent, target, _):
        await shared_out(target, 40)
        for pid in workers_of(parent.pid):
            mapped = [line for line in mapped_by(pid) if "/snapshots/" in line]
            for name in ("vectors.npy", "index.faiss", "neighbours.npy", "id_index.npy"):
                assert any(line.endswith(name) for line in mapped), name


async def test_a_worker_that_dies_is_replaced_and_readiness_is_that_of_all(tmp_path: Path) -> None:
    async with serving(tmp_path) as (parent, target, console):
        victim = workers_of(parent.pid)[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: is_ready(console), is_=False)
        await until(lambda: is_ready(console), is_=True, within_s=60)
        now = workers_of(parent.pid)
        assert victim not in now
        assert len(now) == WORKERS
        assert (await samples(console))["feedline_worker_exits_total", ""] == 1
        assert len(await shared_out(target, 80)) == 80


async def test_a_new_snapshot_reaches_all_workers(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, target, console):
        old = (await shared_out(target, 1))[0]
        new = publish_shop(tmp_path / "snapshots", Shop(seed=8), age=1, parent=old)

        async def served() -> set[str]:
            async with httpx.AsyncClient() as web:
                told = (await web.get(f"{console}/readyz", timeout=30)).json()
            return {one["snapshot_id"] for one in told["workers"]}

        await until(served, is_={new}, within_s=60)
        assert set(await shared_out(target, 80)) == {new}


async def test_sigterm_drains_all_without_a_failed_call(tmp_path: Path) -> None:
    async with serving(tmp_path) as (parent, target, console):
        pids = workers_of(parent.pid)
        answered = 0

        async def shop(client: FeedClient) -> None:
            nonlocal answered
            while await is_ready(console):
                for _ in range(3):
                    assert (await client.get_feed(feed_pb2.GetFeedRequest(recent_events=[viewed("i7")]))).items
                    answered += 1
                if answered > 60 and parent.returncode is None:
                    parent.send_signal(signal.SIGTERM)

        async with FeedClient(target, connections=8, timeout_s=20) as client:
            await asyncio.gather(*(shop(client) for _ in range(6)))
        assert await parent.wait() == 0
        assert answered > 60
        assert not any_lives(pids)


async def test_workers_end_when_the_parent_is_killed(tmp_path: Path) -> None:
    async with serving(tmp_path) as (parent, _, _):
        pids = workers_of(parent.pid)
        parent.kill()
        await parent.wait()
        await until(lambda: any_lives(pids), is_=False, within_s=30)


async def test_a_worker_that_cannot_start_stops_the_start_and_says_why(tmp_path: Path) -> None:
    none = tmp_path / "none.pem"
    with pytest.raises(AssertionError, match="ended before it was ready"):
        async with serving(tmp_path, SERVE__TLS_CERTIFICATE=str(none), SERVE__TLS_KEY=str(none)):
            pass
    assert not list((tmp_path / "valkey").glob("*.sock"))


def test_the_shared_port_is_nobody_elses() -> None:
    with shared_port("127.0.0.1", 0) as port, socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with pytest.raises(StartError, match=rf"serve\.port: 127\.0\.0\.1:{port} cannot be listened on"):
            shared_port("127.0.0.1", port).__enter__()


def test_a_device_has_one_process() -> None:
    settings = Settings.model_validate({"serve": {"workers": 2}, "retrieval": {"device": "cuda"}})
    with pytest.raises(StartError, match=r"serve\.workers: a device has one process"):
        check_binds(settings)


def test_series_of_workers_are_told_apart_and_a_worker_that_does_not_answer_is_left_out() -> None:
    text = '# HELP a_total Text\n# TYPE a_total counter\na_total{why="x"} 2.0\n'
    families = merged([], [text, "", text])
    assert [(one.name, one.labels, one.value) for family in families for one in family.samples] == [
        ("a_total", {"why": "x", "worker": "0"}, 2.0),
        ("a_total", {"why": "x", "worker": "2"}, 2.0),
    ]


def test_the_parent_needs_neither_faiss_nor_onnx_runtime() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['faiss', 'onnxruntime'])); "
        "import services.workers.run, services.cli"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
