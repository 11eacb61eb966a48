"""What is killed, missing or damaged: no call fails, and the page says what happened."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import grpc
import pytest

from cache.embedded import EmbeddedValkey
from cache.redis_link import open_client
from protos import feed_pb2
from services.feed.app import FeedApp, open_app
from tests.feed.conftest import Client, client, settings_for, viewed
from tests.snapshots import Shop, publish_shop
from tests.waiting import until

RANKED = feed_pb2.RUNG_RANKED
FILES = [
    "items.parquet",
    "id_index.npy",
    "vectors.npy",
    "index.faiss",
    "neighbours.npy",
    "similarities.npy",
    "ranker.onnx",
    "popular.parquet",
    "manifest.json",
]


async def test_valkey_killed_while_serving(feed: Client, app: FeedApp) -> None:
    """redis/redis-py#4026, #4082: default retries wait 3 s on a dead server. The embedded one comes back by itself."""
    await feed.record("s1", viewed("i5", event_id="e1"))
    os.kill(await _server_pid(app), signal.SIGKILL)
    reasons: set[str] = set()
    for _ in range(50):
        page = await feed.feed(session_id="s1", recent_events=[viewed("i6")])
        assert page.provenance.rung == RANKED
        assert page.provenance.degraded == ("session_unavailable" in page.provenance.reasons)
        reasons.update(page.provenance.reasons)
    assert reasons <= {"session_unavailable", "cache_unavailable"}
    await until(lambda: _context_of(feed, "s1"), is_=1)  # the event outlived the kill


async def test_valkey_that_stays_dead(tmp_path: Path, snapshots: Path) -> None:
    async with EmbeddedValkey(tmp_path / "own") as server:
        settings = settings_for(tmp_path, state={"url": server.url})
        async with open_app(settings) as app, client(app) as feed:
            await feed.record("s1", viewed("i5", event_id="e1"))
            assert (await feed.feed(session_id="s1")).provenance.context_events == 1
            await server.__aexit__(None, None, None)
            page = await feed.feed(session_id="s1", recent_events=[viewed("i6")])
            assert page.provenance.rung == RANKED  # ranked by what the request itself knows
            assert page.provenance.degraded
            assert list(page.provenance.reasons) == ["session_unavailable", "cache_unavailable"]
            page = await feed.feed(session_id="s1")
            assert page.provenance.rung == feed_pb2.RUNG_POPULAR
            assert page.provenance.degraded
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await feed.record("s1", viewed("i5", event_id="e2"))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_state_server_that_is_not_there_at_start(tmp_path: Path, snapshots: Path) -> None:
    settings = settings_for(tmp_path, state={"url": f"unix://{tmp_path}/nobody.sock"})
    async with open_app(settings) as app, client(app) as feed:
        page = await feed.feed(session_id="s1", recent_events=[viewed("i6")])
        assert page.provenance.rung == RANKED
        assert "session_unavailable" in page.provenance.reasons


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["deleted", "truncated", "flipped"])
async def test_a_damaged_snapshot_is_refused_by_name_and_the_previous_one_is_served(
    tmp_path: Path, name: str, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "snapshots"
    old = publish_shop(root, Shop(count=100))
    new = publish_shop(root, Shop(count=100, seed=8), age=1, parent=old)
    _damage(root / new / name, damage)
    async with open_app(settings_for(tmp_path)) as app, client(app) as feed:
        page = await feed.feed(recent_events=[viewed("i5")])
        assert page.provenance.snapshot_id == old
        assert page.provenance.rung == RANKED
        assert list(page.provenance.reasons) == ["previous_snapshot"]
    assert name in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "rung", "reasons"),
    [
        ("ranker.onnx", feed_pb2.RUNG_RETRIEVED, ["no_ranker"]),
        ("index.faiss", feed_pb2.RUNG_BLENDED, ["no_index"]),
        ("neighbours.npy", feed_pb2.RUNG_RANKED, ["no_neighbours"]),
        ("similarities.npy", feed_pb2.RUNG_RANKED, ["no_neighbours"]),
        ("vectors.npy", feed_pb2.RUNG_POPULAR, ["no_index"]),
        ("popular.parquet", feed_pb2.RUNG_POPULAR, ["no_snapshot"]),
        ("manifest.json", feed_pb2.RUNG_POPULAR, ["no_snapshot"]),
    ],
)
async def test_a_damaged_snapshot_without_a_parent_serves_what_can_be_trusted(
    tmp_path: Path, name: str, rung: int, reasons: list[str]
) -> None:
    root = tmp_path / "snapshots"
    only = publish_shop(root, Shop(count=100))
    (root / only / name).unlink()
    async with open_app(settings_for(tmp_path)) as app, client(app) as feed:
        page = await feed.feed(recent_events=[viewed("i5")])
        assert page.provenance.rung == rung
        assert set(reasons) <= set(page.provenance.reasons)
        assert page.provenance.degraded
        assert len(page.items) == (0 if reasons == ["no_snapshot"] else 20)


async def test_retrieval_that_fails_leaves_the_other_sources_and_nothing_in_the_cache(
    feed: Client, app: FeedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("faiss is out of order")

    loaded = app.live.current()
    assert loaded is not None
    with monkeypatch.context() as broken:
        broken.setattr(loaded.retriever, "search", fail)
        for _ in range(2):
            page = await feed.feed(recent_events=[viewed("i5")])
            assert page.provenance.rung == feed_pb2.RUNG_BLENDED
            assert list(page.provenance.reasons) == ["retrieval_failed"]
            assert page.provenance.degraded
            assert page.provenance.cache == feed_pb2.CACHE_OUTCOME_MISS
    page = await feed.feed(recent_events=[viewed("i5")])
    assert (page.provenance.rung, page.provenance.cache) == (RANKED, feed_pb2.CACHE_OUTCOME_MISS)


async def test_files_deleted_while_serving_change_nothing(feed: Client, snapshots: Path) -> None:
    for name in ("ranker.onnx", "index.faiss", "vectors.npy", "neighbours.npy", "items.parquet", "CURRENT"):
        _delete(snapshots, name)
    page = await feed.feed(recent_events=[viewed("i5")])
    assert page.provenance.rung == RANKED
    assert not page.provenance.reasons


async def test_no_snapshot_at_all_is_an_empty_page_that_says_so(tmp_path: Path) -> None:
    async with open_app(settings_for(tmp_path)) as app, client(app) as feed:
        page = await feed.feed(recent_events=[viewed("i5")])
        assert (len(page.items), page.provenance.degraded) == (0, True)
        assert list(page.provenance.reasons) == ["no_snapshot"]


async def test_a_snapshot_that_is_published_later_is_served_without_a_restart(tmp_path: Path) -> None:
    async with open_app(settings_for(tmp_path, snapshots={"watch_s": 0.05})) as app, client(app) as feed:
        assert not (await feed.feed()).items
        published = publish_shop(tmp_path / "snapshots", Shop(count=100))
        await until(lambda: _snapshot_of(feed), is_=published)
        assert len((await feed.feed()).items) == 20


async def test_a_bad_new_snapshot_leaves_the_old_one_serving(feed: Client, app: FeedApp, snapshots: Path) -> None:
    before = (await feed.feed()).provenance.snapshot_id
    new = publish_shop(snapshots, Shop(seed=8), age=1, parent=before)
    _damage(snapshots / new / "index.faiss", "flipped")
    await asyncio.to_thread(app.live.refresh)
    page = await feed.feed(recent_events=[viewed("i5")])
    assert page.provenance.snapshot_id == before
    assert page.provenance.rung == RANKED


async def _context_of(feed: Client, session_id: str) -> int:
    return (await feed.feed(session_id=session_id)).provenance.context_events


async def _snapshot_of(feed: Client) -> str:
    return (await feed.feed()).provenance.snapshot_id


async def _server_pid(app: FeedApp) -> int:
    server = open_client(app.state_url, max_connections=1)
    try:
        return int((await server.info("server"))["process_id"])
    finally:
        await server.aclose()


def _delete(root: Path, name: str) -> None:
    for path in root.rglob(name):
        path.unlink()


def _damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    path.chmod(0o644)
    path.unlink()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :])
