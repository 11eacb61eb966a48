"""A new snapshot beside the old one: room for it, refusals that pass, the old one freed, no call failed."""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer.contract.manifest import INDEX, VECTORS
from indexer.contract.publish import publish
from indexer.contract.snapshot import CURRENT, read_manifest
from services.feed.app import FeedApp, open_app
from services.feed.live import Live
from services.feed.loading import Loader
from services.feed.memory import available_bytes, needed_bytes
from services.feed.quiet import quietly
from services.metrics import Metrics
from tests.clock import ManualClock
from tests.damage import flip_byte
from tests.feed.conftest import Client, client, settings_for, viewed
from tests.snapshots import Shop, publish_shop

SHOP = Shop(count=6, dimension=4)
SWAPS = int(os.environ.get("FEEDLINE_SWAPS", "10"))
"""A sample; `make swaps` asks for 100."""
CALLERS = 8


class Watched:
    """A Live over `root` with a clock and a memory of the test's own."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.room: int | None = None
        self.metrics = Metrics()
        loader = Loader(exact_below=0, threads=1)
        self.live = Live(root, loader, self.metrics, available=lambda: self.room, clock=self.clock)
        self.live.load_at_start()

    def after(self, seconds: float) -> str:
        """What is served when CURRENT is looked for so much later."""
        self.clock.advance(seconds)
        self.live.refresh()
        loaded = self.live.current()
        assert loaded is not None
        return loaded.id

    def refused(self, why: str) -> float:
        return self.metrics.registry.get_sample_value("feedline_snapshots_refused_total", {"why": why}) or 0.0

    @property
    def behind(self) -> float | None:
        return self.metrics.registry.get_sample_value("feedline_snapshot_behind")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    publish_shop(tmp_path, SHOP)
    return tmp_path


def test_without_room_the_new_one_is_refused_with_the_reason_until_there_is(root: Path) -> None:
    watched = Watched(root)
    old = watched.after(0)
    new = publish_shop(root, SHOP, age=1, parent=old)
    watched.room = needed_bytes(read_manifest(root / new)) - 1
    assert watched.after(0) == old
    refusal = watched.live.refusal
    assert refusal is not None
    assert refusal.reason.startswith(f"snapshot {new} refused: it takes about ")
    assert (watched.refused("memory"), watched.behind) == (1, 1)
    watched.room += 1
    assert watched.after(4.9) == old
    assert watched.after(0.1) == new
    assert (watched.live.refusal, watched.refused("memory"), watched.behind) == (None, 1, 0)


def test_pauses_between_tries_double_up_to_five_minutes(root: Path) -> None:
    watched = Watched(root)
    old = watched.after(0)
    new = publish_shop(root, SHOP, age=1, parent=old)
    watched.room = 0
    for tries, pause_s in enumerate((0, 5, 10, 20, 40, 80, 160, 300, 300), start=1):
        assert watched.after(max(0, pause_s - 0.1)) == old
        watched.after(0.1)
        assert watched.refused("memory") == tries
    watched.room = None
    assert watched.after(300) == new


def test_a_folder_that_comes_after_current_is_served_when_it_is_there(root: Path) -> None:
    watched = Watched(root)
    old = watched.after(0)
    new = publish_shop(root, SHOP, age=1, parent=old)
    (root / new).rename(root / "on the way")
    assert watched.after(0) == old
    assert watched.refused("unavailable") == 1
    (root / "on the way").rename(root / new)
    assert watched.after(5) == new


def test_a_damaged_one_is_not_read_again_until_current_names_it_anew(root: Path) -> None:
    watched = Watched(root)
    old = watched.after(0)
    bad = publish_shop(root, SHOP, age=1, parent=old)
    flip_byte(root / bad / INDEX)
    assert watched.after(0) == old
    assert watched.after(1e6) == old
    assert watched.refused("damaged") == 1
    flip_byte(root / bad / INDEX)  # mended
    publish(root, old)
    assert watched.after(0) == old
    assert watched.live.refusal is None
    publish(root, bad)
    assert watched.after(0) == bad


def test_what_was_refused_at_the_start_for_a_passing_reason_is_tried_again(root: Path) -> None:
    old = (root / CURRENT).read_text().strip()
    new = publish_shop(root, SHOP, age=1, parent=old)
    (root / new / VECTORS).rename(root / "on the way")
    watched = Watched(root)
    assert watched.after(0) == old
    (root / "on the way").rename(root / new / VECTORS)
    assert watched.after(5) == new


def test_the_old_one_is_freed_with_its_mapped_files(root: Path) -> None:
    watched = Watched(root)
    old = watched.live.current()
    assert old is not None
    assert old.retriever is not None
    assert old.shelf is not None
    parts = [weakref.ref(part) for part in (old, old.retriever, old.items, old.ranker, old.filters)]
    name = old.id
    del old
    publish_shop(root, replace(SHOP, seed=8), age=1, parent=name)
    gc.collect()
    gc.disable()  # references alone must do it: a collection of everything may be minutes away
    try:
        watched.live.refresh()
        assert list(_mapped(root / name))
        assert all(part() is not None for part in parts)
        watched.live.free()
        assert [part() for part in parts] == [None] * len(parts)
        assert list(_mapped(root / name)) == []
    finally:
        gc.enable()


def _mapped(folder: Path) -> Iterator[str]:
    """Files of the folder that this process has mapped."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return (line for line in maps if f"{folder}/" in line)


async def test_a_token_of_the_old_snapshot_starts_over_and_says_so(app: FeedApp, feed: Client, snapshots: Path) -> None:
    first = await feed.feed(recent_events=[viewed("i5")])
    publish_shop(snapshots, Shop(seed=8), age=1, parent=first.provenance.snapshot_id)
    await asyncio.to_thread(app.live.refresh)
    again = await feed.feed(recent_events=[viewed("i5")], page_token=first.next_page_token)
    assert again.provenance.snapshot_id != first.provenance.snapshot_id
    assert "page_token_restarted" in again.provenance.reasons
    assert not again.provenance.degraded
    assert [item.rank for item in again.items] == list(range(1, 21))
    onwards = await feed.feed(recent_events=[viewed("i5")], page_token=again.next_page_token)
    assert onwards.items[0].rank == 21
    assert "page_token_restarted" not in onwards.provenance.reasons


@pytest.mark.timeout(1800)
async def test_swaps_under_load_fail_no_call_and_leave_nothing_behind(tmp_path: Path) -> None:
    """facebookresearch/faiss#1540: SIGBUS on overwrite in place. milvus-io/milvus#46284: failures on an index
    switch."""
    root = tmp_path / "snapshots"
    last = publish_shop(root, Shop())
    settings = settings_for(tmp_path, snapshots={"watch_s": 0.02}, cache={"enabled": False}, budget={"page_ms": 400})
    async with open_app(settings) as app, client(app) as feed:
        served: dict[str, int] = {}
        stopping = asyncio.Event()

        async def shop(number: int) -> None:
            rng = np.random.default_rng(number)
            token = ""
            while not stopping.is_set():
                page = await feed.feed(recent_events=[viewed(f"i{rng.integers(1000)}")], page_token=token)
                assert len(page.items) == 20
                token = page.next_page_token if rng.random() < 0.5 else ""
                served[page.provenance.snapshot_id] = served.get(page.provenance.snapshot_id, 0) + 1

        callers = [asyncio.create_task(shop(number)) for number in range(CALLERS)]
        old: list[weakref.ref[object]] = []
        for age in range(1, SWAPS + 1):
            loaded = app.live.current()
            assert loaded is not None
            old.append(weakref.ref(loaded))
            del loaded
            last = await asyncio.to_thread(publish_shop, root, Shop(seed=age), age=age, parent=last)
            async with asyncio.timeout(60):
                while served.get(last, 0) < CALLERS:  # noqa: ASYNC110 - others ask
                    await asyncio.sleep(0.01)
        async with asyncio.timeout(60):
            while any(one() for one in old):  # noqa: ASYNC110 - drained in the background
                await asyncio.sleep(0.05)
        stopping.set()
        await asyncio.gather(*callers)  # raises what a call was answered with, if that was not a page
        assert {line.split(f"{root}/")[1].split("/")[0] for line in _mapped(root)} == {last}
        print(f"{SWAPS} swaps under load: {sum(served.values())} pages, none failed")


def test_a_call_that_is_made_quietly_gives_way_and_leaves_the_caller_as_it_was() -> None:
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert quietly(lambda: os.getpriority(os.PRIO_PROCESS, 0)) == min(19, mine + 10)
    assert os.getpriority(os.PRIO_PROCESS, 0) == mine
    with pytest.raises(ZeroDivisionError):
        quietly(lambda: 1 // 0)


MEMINFO = "MemTotal: 1000 kB\nMemAvailable:    800 kB\n"


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 800 << 10),
        ({"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/a/b\n"}, 800 << 10),
        (
            {
                "proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n", "sys/fs/cgroup/a/b/memory.current": "5\n",
                "sys/fs/cgroup/a/memory.max": "9000\n", "sys/fs/cgroup/a/memory.current": "8000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 7000\nactive_file 300\ninactive_file 200\n",
            },
            1500,
        ),
        (
            {
                "proc/meminfo": MEMINFO, "proc/self/cgroup": "1:cpu:/x\n4:memory:/docker/1\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "9500\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 100\n",
            },
            0,
        ),
    ],
)  # fmt: skip
def test_room_is_what_the_machine_and_every_group_above_leave(
    tmp_path: Path, written: dict[str, str], left: int | None
) -> None:
    for name, text in written.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert available_bytes(tmp_path) == left


def test_this_machine_tells_what_it_has_left() -> None:
    left = available_bytes()
    assert left is None or left > 0
