"""Cancelled from outside, or from within: a status always arrives, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import grpc
import httpx
import pytest

from protos import feed_pb2
from services.feed.app import FeedApp
from tests.feed.conftest import Client, viewed
from tests.feed.process import serving
from tests.waiting import until

CANCELS = int(os.environ.get("FEEDLINE_CANCELS", "3000"))
"""A sample; `make soak` asks for all 100,000."""
CONCURRENT = 50
GROWTH_MB = 24


async def _cancelled_within(*_: object, **__: object) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "place", ["_line._sessions.read", "_line._rankings._cache.get", "_line._rankings._batcher.submit"]
)
async def test_an_inner_cancel_still_gets_a_page(
    feed: Client, app: FeedApp, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """grpc/grpc#29248 (still in 1.85.3): an inner cancel that leaves a handler hangs the client."""
    *path, name = place.split(".")
    owner: object = app.servicer
    for step in path:
        owner = getattr(owner, step)
    monkeypatch.setattr(owner, name, _cancelled_within)
    async with asyncio.timeout(5):
        page = await feed.feed(session_id="s1", recent_events=[viewed("i5")])
    assert len(page.items) == 20
    assert page.provenance.degraded


async def test_an_inner_cancel_of_storing_events_is_unavailable(
    feed: Client, app: FeedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """grpc/grpc#29248, as above."""
    monkeypatch.setattr(app.servicer._stream, "record", _cancelled_within)
    async with asyncio.timeout(5):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await feed.record("s1", viewed("i5", event_id="e1"))
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.timeout(3600)
async def test_cancelled_calls_leave_nothing_behind(tmp_path: Path, snapshots: Path) -> None:
    """grpc/grpc#43360: a leak on cancelled calls. (A bare grpc.aio echo grows by about 0.1 KB for each: so do we.)"""
    rng = random.Random(43360)
    async with serving("-m", "services.cli", folder=tmp_path, snapshots=snapshots) as (process, feed, console):
        await _cancel(feed, rng, 3000)  # fills caches and pools
        before = _resident_mb(process.pid)
        await _cancel(feed, rng, CANCELS)
        growth = _resident_mb(process.pid) - before
        print(f"{CANCELS} cancelled calls: the service's resident memory grew by {growth:.1f} MB")
        await until(lambda: _permits_held(console), is_=0.0)
        assert (await feed.feed(recent_events=[viewed("i5")])).provenance.rung == feed_pb2.RUNG_RANKED
        assert growth < GROWTH_MB


async def _permits_held(console: str) -> float:
    async with httpx.AsyncClient() as web:
        lines = (await web.get(f"{console}/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("feedline_in_flight "))


async def _cancel(feed: Client, rng: random.Random, count: int) -> None:
    """Calls that are cancelled at a random moment of their life, or answered before."""

    async def one() -> None:
        events = [viewed(f"i{rng.randrange(900)}")]
        call = asyncio.create_task(feed.feed(session_id=f"s{rng.randrange(50)}", recent_events=events))
        await asyncio.sleep(rng.random() * 0.02)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    for _ in range(0, count, CONCURRENT):
        await asyncio.gather(*(one() for _ in range(CONCURRENT)))


def _resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
