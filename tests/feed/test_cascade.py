"""The strong ranker is asked for what is doubtful, while time allows, and costs nothing but itself when it fails."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer.contract.cascade import CascadeSpec
from indexer.contract.manifest import STRONG_RANKER
from indexer.contract.snapshot import SnapshotError, open_snapshot
from protos import feed_pb2
from services.feed.app import FeedApp, open_app
from services.feed.cascade import StrongCost, escalate, uncertain
from services.feed.loaded import Loaded
from services.feed.loading import Loader
from services.feed.rerank import score
from services.feed.work import Work
from tests.feed.conftest import Client, client, settings_for, viewed
from tests.feed.shops import person, question
from tests.snapshots import Shop, publish_shop

SPEC = CascadeSpec(page=2, levels=(0.0, -1.0, -9.0), strong_ms=2.0)
CLEAR = np.array([9, 8, 1, 0], np.float32)
CLOSE = np.array([9, 8, 7.9, 0], np.float32)
EQUAL = np.array([9, 8, 8, 0], np.float32)


class Seen:
    """What was told of the strong ranker."""

    def __init__(self) -> None:
        self.told: dict[str, int] = {}

    def __call__(self, how: str, count: int) -> None:
        self.told[how] = self.told.get(how, 0) + count


def load(root: Path, share: float, seen: Seen, *, whole: bool = True) -> Loaded:
    folder = root / publish_shop(root, Shop(count=200, strong=True))
    return Loader(exact_below=0, threads=1, cascade=share, observe_strong=seen).load(open_snapshot(folder), whole=whole)


def ranked(loaded: Loaded, *rows: int, expires_at: float = float("inf")) -> list[int]:
    (scored,) = score([Work(question(loaded, *rows), expires_at=expires_at)])
    return list(scored.answer.shared.candidates.rows[scored.answer.order()[0]].tolist())


def test_the_smaller_the_margin_at_the_cut_the_sooner_a_question_is_sent_on() -> None:
    assert [uncertain(each, SPEC, 0.5) for each in (CLEAR, CLOSE, EQUAL)] == [False, True, True]
    assert escalate([CLEAR, CLOSE, EQUAL], 1.0, 0.001, SPEC, 0.5) == [1, 2]
    assert escalate([CLEAR, CLOSE, EQUAL], 1.0, 0.001, SPEC, 1.0) == [0, 1, 2]
    assert escalate([CLEAR, CLOSE, EQUAL], 1.0, 0.001, SPEC, 0.0) == []


def test_what_time_does_not_allow_is_not_begun_and_the_most_doubtful_go_first() -> None:
    assert escalate([CLEAR, CLOSE, EQUAL], 0.0016, 0.001, SPEC, 1.0) == [2]
    assert escalate([CLEAR, CLOSE, EQUAL], 0.0, 0.001, SPEC, 1.0) == []
    assert escalate([CLEAR, CLOSE, EQUAL], -5.0, 0.001, SPEC, 1.0) == []
    assert escalate([CLEAR, CLOSE, EQUAL], 0.0, 0.0, SPEC, 1.0) == []
    assert escalate([CLEAR, CLOSE, EQUAL], 1e-9, 0.0, SPEC, 1.0) == [0, 1, 2]
    assert escalate([CLEAR, CLOSE, EQUAL], float("inf"), 0.001, SPEC, 1.0) == [0, 1, 2]


def test_a_page_that_holds_all_candidates_has_no_cut_and_no_doubt() -> None:
    assert escalate([EQUAL[:2]], 1.0, 0.001, SPEC, 0.5) == []


def test_the_cost_is_learned_from_what_runs_take() -> None:
    cost = StrongCost(SPEC)
    assert cost.seconds == pytest.approx(0.002)
    for _ in range(200):
        cost.observe(4, 0.4)
    assert cost.seconds == pytest.approx(0.1, rel=1e-3)
    cost.observe(0, 99.0)
    assert cost.seconds == pytest.approx(0.1, rel=1e-3)


def test_one_run_that_took_long_is_not_the_last() -> None:
    cost = StrongCost(SPEC)
    cost.observe(1, 20.0)
    stalled = cost.seconds
    assert escalate([EQUAL], 0.1, stalled, SPEC, 1.0) == []
    cost.withheld()
    assert cost.seconds > 0.99 * stalled
    for _ in range(4000):
        cost.withheld()
    assert escalate([EQUAL], 0.1, cost.seconds, SPEC, 1.0) == [0]
    for _ in range(20_000):
        cost.withheld()
    assert cost.seconds == pytest.approx(0.002)


def test_time_that_is_wanting_brings_the_strong_ranker_back_in_the_end(tmp_path: Path) -> None:
    seen = Seen()
    loaded = load(tmp_path, 1.0, seen)
    assert loaded.cascade is not None
    loaded.cascade.cost.observe(1, 1e6)
    before = loaded.cascade.cost.seconds
    ranked(loaded, 3, 4, expires_at=time.monotonic() + 60)
    assert loaded.cascade.cost.seconds < before
    assert seen.told == {}


def test_all_or_none_of_the_questions_are_ranked_by_the_strong_ranker(tmp_path: Path) -> None:
    none, every = Seen(), Seen()
    fast = ranked(load(tmp_path / "none", 0.0, none), 3, 4)
    strong = ranked(load(tmp_path / "every", 1.0, every), 3, 4)
    assert set(fast) == set(strong)
    assert fast == strong[::-1]
    assert none.told == {}
    assert every.told == {"asked": 1}


def test_only_the_doubtful_half_of_a_batch_is_ranked_by_the_strong_ranker(tmp_path: Path) -> None:
    asked = [(row, row + 1) for row in range(0, 40, 2)]
    seen = Seen()
    none, half, every = (load(tmp_path / f"{share}", share, seen) for share in (0.0, 0.5, 1.0))
    assert half.cascade is not None
    fast, mixed, strong = (score([Work(question(loaded, *rows)) for rows in asked]) for loaded in (none, half, every))
    orders = [[each.answer.order()[0].tolist() for each in scored] for scored in (fast, mixed, strong)]
    doubted = [uncertain(each.answer.rank_scores, half.cascade.spec, 0.5) for each in fast]
    assert 0 < sum(doubted) < len(asked)
    assert orders[1] == [orders[2 if so else 0][at] for at, so in enumerate(doubted)]
    assert seen.told == {"asked": sum(doubted) + len(asked)}


def test_the_personal_step_asks_it_too(tmp_path: Path) -> None:
    seen = Seen()
    loaded = load(tmp_path, 1.0, seen)
    asked = question(loaded, 3)
    (shared,) = score([Work(asked)])
    assert seen.told == {"asked": 1}
    score([Work(asked, person(7, 9), shared.answer), Work(asked, person(8), shared.answer)])
    assert seen.told == {"asked": 3}


def test_without_time_left_the_fast_order_stands(tmp_path: Path) -> None:
    seen = Seen()
    loaded = load(tmp_path / "late", 1.0, seen)
    late = ranked(loaded, 3, 4, expires_at=time.monotonic() - 1)
    assert seen.told == {}
    assert late == ranked(load(tmp_path / "none", 0.0, Seen()), 3, 4)


def test_the_least_time_of_a_batch_counts_whatever_snapshots_are_in_it(tmp_path: Path) -> None:
    seen = Seen()
    loaded, other = load(tmp_path / "strong", 1.0, seen), load(tmp_path / "other", 0.0, Seen())
    asked, late = Work(question(loaded, 3, 4)), time.monotonic() - 1
    score([asked, Work(question(loaded, 5), expires_at=late)])
    score([asked, Work(question(other, 5), expires_at=late)])
    assert seen.told == {}
    score([asked, Work(question(other, 5))])
    assert seen.told == {"asked": 1}


def test_a_strong_ranker_that_fails_leaves_the_fast_order(tmp_path: Path) -> None:
    seen = Seen()
    loaded = load(tmp_path / "failing", 1.0, seen)
    assert loaded.cascade is not None
    broken = loaded.cascade.ranker
    broken.spec = broken.spec.model_copy(update={"output": "no such output"})
    assert ranked(loaded, 3, 4) == ranked(load(tmp_path / "none", 0.0, Seen()), 3, 4)
    assert seen.told == {"failed": 1}


def test_a_strong_ranker_that_fails_the_warm_up_is_refused_whole_and_left_out_otherwise(tmp_path: Path) -> None:
    snapshot = open_snapshot(tmp_path / publish_shop(tmp_path, Shop(count=200, strong=True, strong_weight=np.inf)))
    seen = Seen()
    loader = Loader(exact_below=0, threads=1, cascade=0.2, observe_strong=seen)
    with pytest.raises(SnapshotError, match="warm-up: the strong ranker strong-7 failed"):
        loader.load(snapshot, whole=True)
    loaded = loader.load(snapshot, whole=False)
    assert (loaded.cascade, loaded.ranker is not None, loaded.reasons) == (None, True, ())
    assert Loader(exact_below=0, threads=1).load(snapshot, whole=True).reasons == ()
    assert seen.told == {}


def test_a_strong_ranker_that_wants_other_tensors_than_the_fast_one_is_refused(tmp_path: Path) -> None:
    snapshot = open_snapshot(tmp_path / publish_shop(tmp_path, Shop(count=200, strong=True)))
    strong = snapshot.manifest.strong_ranker
    assert strong is not None
    longer = snapshot.manifest.model_copy(update={"strong_ranker": strong.model_copy(update={"places": 7})})
    with pytest.raises(SnapshotError, match=r"places \(50, 7\), expected those of the ranker, \(50, 50\)"):
        Loader(exact_below=0, threads=1, cascade=1.0).load(replace(snapshot, manifest=longer), whole=True)


def test_a_damaged_strong_ranker_is_refused_whole_and_left_out_otherwise(tmp_path: Path) -> None:
    folder = tmp_path / publish_shop(tmp_path, Shop(count=200, strong=True))
    damaged = folder / STRONG_RANKER
    damaged.chmod(0o644)
    damaged.write_bytes(b"not a model")
    loader = Loader(exact_below=0, threads=1, cascade=1.0)
    with pytest.raises(SnapshotError, match=STRONG_RANKER):
        loader.load(open_snapshot(folder), whole=True)
    loaded = loader.load(open_snapshot(folder), whole=False)
    assert (loaded.cascade, loaded.ranker is not None, loaded.reasons) == (None, True, ())


@asynccontextmanager
async def served(folder: Path, share: float) -> AsyncIterator[tuple[FeedApp, Client]]:
    async with open_app(settings_for(folder, scoring={"cascade": share})) as app, client(app) as connected:
        yield app, connected


async def first_page(feed: Client) -> feed_pb2.GetFeedResponse:
    page = await feed.feed(recent_events=[viewed("i3")], page_size=50)
    assert (page.provenance.rung, list(page.provenance.reasons)) == (feed_pb2.RUNG_RANKED, [])
    assert page.provenance.ranker_id == "linear-7"
    return page


def ids(page: feed_pb2.GetFeedResponse) -> list[str]:
    return [item.item_id for item in page.items]


def told(app: FeedApp, outcome: str) -> float | None:
    return app.metrics.registry.get_sample_value("feedline_strong_ranker_total", {"outcome": outcome})


async def test_a_page_is_ranked_by_the_strong_ranker_where_the_settings_want_it_and_kept_like_any(
    tmp_path: Path,
) -> None:
    """Both services share one cache, and do not take each other's answers."""
    publish_shop(tmp_path / "snapshots", Shop(count=200, strong=True))
    async with served(tmp_path, 0.0) as (app, feed):
        fast = await first_page(feed)
        assert told(app, "asked") is None
    async with served(tmp_path, 1.0) as (app, feed):
        strong = await first_page(feed)
        again = await first_page(feed)
        assert told(app, "asked") == 1
    assert ids(strong) == ids(again) == ids(fast)[::-1]
    assert strong.provenance.cache != again.provenance.cache == feed_pb2.CACHE_OUTCOME_LOCAL


async def test_a_page_does_not_wait_for_a_strong_ranker_that_takes_longer_than_it_has(tmp_path: Path) -> None:
    publish_shop(tmp_path / "snapshots", Shop(count=200, strong=True))
    async with served(tmp_path, 1.0) as (app, feed):
        loaded = app.live.current()
        assert loaded is not None
        assert loaded.cascade is not None
        loaded.cascade.cost.observe(1, 1e6)
        page = await first_page(feed)
        assert told(app, "asked") is None
    assert [item.score for item in page.items] == sorted((item.score for item in page.items), reverse=True)


async def test_a_strong_ranker_that_fails_costs_a_page_neither_its_rung_nor_its_place_in_the_cache(
    tmp_path: Path,
) -> None:
    publish_shop(tmp_path / "snapshots", Shop(count=200, strong=True))
    async with served(tmp_path, 1.0) as (app, feed):
        loaded = app.live.current()
        assert loaded is not None
        assert loaded.cascade is not None
        strong = loaded.cascade.ranker
        strong.spec = strong.spec.model_copy(update={"output": "no such output"})
        page = await first_page(feed)
        assert ids(await first_page(feed)) == ids(page)
        assert (told(app, "asked"), told(app, "failed")) == (None, 1)
