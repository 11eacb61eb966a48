from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fallback.ladder import Reason
from indexer.contract.manifest import INDEX, MANIFEST, POPULAR, RANKER
from indexer.contract.publish import publish
from indexer.contract.snapshot import CURRENT, Snapshot
from services.errors import NotScored
from services.feed import live as live_module
from services.feed import loading
from services.feed.live import Live
from services.feed.loading import Loader
from services.feed.rerank import Scored, score
from services.feed.work import Work
from services.metrics import Metrics
from tests.damage import flip_byte, replace_file
from tests.snapshots import Shop, publish_shop

SHOP = Shop(count=6, dimension=4)


def started(root: Path) -> tuple[Live, Metrics]:
    metrics = Metrics()
    live = Live(root, Loader(exact_below=0, threads=1), metrics)
    live.load_at_start()
    return live, metrics


def served(live: Live) -> tuple[str, tuple[Reason, ...]] | None:
    loaded = live.current()
    return None if loaded is None else (loaded.id, loaded.reasons)


def refusals(metrics: Metrics) -> float:
    whys = ("damaged", "unavailable", "memory", "internal")
    return sum(
        metrics.registry.get_sample_value("feedline_snapshots_refused_total", {"why": why}) or 0.0 for why in whys
    )


@pytest.fixture
def two(tmp_path: Path) -> tuple[str, str]:
    old = publish_shop(tmp_path, SHOP)
    return old, publish_shop(tmp_path, replace(SHOP, seed=8), age=1, parent=old)


def test_the_current_snapshot_is_served(tmp_path: Path, two: tuple[str, str]) -> None:
    live, metrics = started(tmp_path)
    assert served(live) == (two[1], ())
    assert refusals(metrics) == 0
    labels = {"snapshot": two[1], "ranker": "linear-8"}
    assert metrics.registry.get_sample_value("feedline_snapshot_info", labels) == 1


@pytest.mark.parametrize("folder", [".", "not there"])
def test_where_nothing_was_published_nothing_is_served(tmp_path: Path, folder: str) -> None:
    assert served(started(tmp_path / folder)[0]) is None


@pytest.mark.parametrize("name", [INDEX, RANKER, POPULAR, MANIFEST])
def test_a_damaged_snapshot_is_refused_and_its_parent_served(tmp_path: Path, two: tuple[str, str], name: str) -> None:
    flip_byte(tmp_path / two[1] / name)
    live, metrics = started(tmp_path)
    assert served(live) == (two[0], (Reason.PREVIOUS_SNAPSHOT,))
    assert refusals(metrics) == 1


def test_an_index_that_lies_is_refused_and_the_parent_served(tmp_path: Path, two: tuple[str, str]) -> None:
    replace_file(tmp_path / two[1], INDEX, (tmp_path / two[0] / INDEX).read_bytes())
    assert served(started(tmp_path)[0]) == (two[0], (Reason.PREVIOUS_SNAPSHOT,))


def test_where_no_snapshot_is_whole_the_newest_serves_what_can_be_trusted(tmp_path: Path, two: tuple[str, str]) -> None:
    flip_byte(tmp_path / two[0] / RANKER)
    flip_byte(tmp_path / two[1] / INDEX)
    assert served(started(tmp_path)[0]) == (two[1], (Reason.NO_INDEX,))
    flip_byte(tmp_path / two[1] / POPULAR)
    assert served(started(tmp_path)[0]) == (two[0], (Reason.PREVIOUS_SNAPSHOT, Reason.NO_RANKER))
    (tmp_path / two[0] / MANIFEST).unlink()
    assert served(started(tmp_path)[0]) is None


@pytest.mark.parametrize("text", ["", "../..", "garbage\n", "x" * 300])
def test_where_current_names_nothing_the_newest_is_served(tmp_path: Path, two: tuple[str, str], text: str) -> None:
    (tmp_path / CURRENT).write_text(text)
    assert served(started(tmp_path)[0]) == (two[1], ())


def test_a_current_that_is_gone_is_stood_in_for_by_the_newest_older_one(tmp_path: Path, two: tuple[str, str]) -> None:
    (tmp_path / CURRENT).write_text("20270101T000000Z-00000000\n")
    assert served(started(tmp_path)[0]) == (two[1], (Reason.PREVIOUS_SNAPSHOT,))


def test_a_new_snapshot_is_warmed_before_it_is_swapped_in(
    tmp_path: Path, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live, _ = started(tmp_path)
    new = publish_shop(tmp_path, replace(SHOP, seed=9), age=2, parent=two[1])
    during: set[tuple[str, str]] = set()

    def score_and_look(works: Sequence[Work]) -> list[Scored]:
        serving = live.current()
        assert serving is not None
        during.add((serving.id, works[0].question.loaded.id))
        return score(works)

    monkeypatch.setattr(loading, "score", score_and_look)
    live.refresh()
    live.refresh()
    assert during == {(two[1], new)}
    assert served(live) == (new, ())


def test_a_rollback_is_followed(tmp_path: Path, two: tuple[str, str]) -> None:
    live, _ = started(tmp_path)
    publish(tmp_path, two[0])
    live.refresh()
    assert served(live) == (two[0], ())


@pytest.mark.parametrize("name", [INDEX, RANKER, POPULAR, MANIFEST])
def test_a_new_snapshot_that_is_damaged_leaves_the_old_one_serving_and_is_read_once(
    tmp_path: Path, two: tuple[str, str], name: str
) -> None:
    live, metrics = started(tmp_path)
    new = publish_shop(tmp_path, SHOP, age=2, parent=two[1])
    flip_byte(tmp_path / new / name)
    for _ in range(3):
        live.refresh()
    assert served(live) == (two[1], (Reason.PREVIOUS_SNAPSHOT,))
    assert refusals(metrics) == 1


def test_a_new_snapshot_that_cannot_be_warmed_is_refused(
    tmp_path: Path, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live, metrics = started(tmp_path)
    publish_shop(tmp_path, SHOP, age=2, parent=two[1])
    tries: list[int] = []

    def fail(works: Sequence[Work]) -> list[Scored]:
        tries.append(len(works))
        raise NotScored(Reason.RETRIEVAL_FAILED)

    monkeypatch.setattr(loading, "score", fail)
    for _ in range(3):
        live.refresh()
    assert served(live) == (two[1], (Reason.PREVIOUS_SNAPSHOT,))
    assert (len(tries), refusals(metrics)) == (1, 1)


def test_where_no_snapshot_can_be_warmed_popularity_is_served(
    tmp_path: Path, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(works: Sequence[Work]) -> list[Scored]:
        raise NotScored(Reason.RETRIEVAL_FAILED, str(len(works)))

    monkeypatch.setattr(loading, "score", fail)
    assert served(started(tmp_path)[0]) == (two[1], (Reason.NO_INDEX,))


def test_a_rollback_to_the_one_that_is_served_makes_it_current_again(tmp_path: Path, two: tuple[str, str]) -> None:
    flip_byte(tmp_path / two[1] / INDEX)
    live, _ = started(tmp_path)
    assert served(live) == (two[0], (Reason.PREVIOUS_SNAPSHOT,))
    publish(tmp_path, two[0])
    live.refresh()
    assert served(live) == (two[0], ())


def test_a_good_one_after_a_refused_one_is_served(tmp_path: Path, two: tuple[str, str]) -> None:
    live, _ = started(tmp_path)
    bad = publish_shop(tmp_path, SHOP, age=2, parent=two[1])
    flip_byte(tmp_path / bad / INDEX)
    live.refresh()
    good = publish_shop(tmp_path, SHOP, age=3, parent=two[1])
    live.refresh()
    assert served(live) == (good, ())


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_text("garbage")])
def test_a_current_that_is_lost_while_serving_changes_nothing(
    tmp_path: Path, two: tuple[str, str], spoil: Callable[[Path], None]
) -> None:
    live, _ = started(tmp_path)
    spoil(tmp_path / CURRENT)
    live.refresh()
    assert served(live) == (two[1], ())


async def test_the_watch_goes_on_after_a_refusal(tmp_path: Path, two: tuple[str, str]) -> None:
    live, _ = started(tmp_path)
    watch = asyncio.create_task(live.watch(0.0))
    bad = publish_shop(tmp_path / "aside", SHOP, age=2)
    (tmp_path / "aside" / bad).rename(tmp_path / bad)
    flip_byte(tmp_path / bad / INDEX)
    publish(tmp_path, bad)
    await asyncio.to_thread(live.refresh)
    good = publish_shop(tmp_path, replace(SHOP, seed=9), age=3, parent=two[1])
    async with asyncio.timeout(10):
        while served(live) != (good, ()):  # noqa: ASYNC110 - the watch runs in a thread of its own
            await asyncio.sleep(0.01)
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def test_the_watch_goes_on_after_a_failure_of_another_kind(
    tmp_path: Path, two: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    live, metrics = started(tmp_path)
    new = publish_shop(tmp_path, SHOP, age=2, parent=two[1])

    def forbidden(folder: Path) -> Snapshot:
        monkeypatch.undo()
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(live_module, "open_snapshot", forbidden)
    watch = asyncio.create_task(live.watch(0.0))
    async with asyncio.timeout(10):
        while served(live) != (new, ()):  # noqa: ASYNC110 - the watch runs in a thread of its own
            await asyncio.sleep(0.01)
    assert refusals(metrics) == 1
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
