"""The real service walked through past sessions: what it answers is what the job computes, and nothing leaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer.contract.features import PURCHASE
from indexer.contract.purchases import Bought, UserPurchases
from indexer.contract.snapshot import current_id, open_snapshot
from indexer.contract.towers import Mode
from indexer.contract.visits import Answered, Deed, Visit
from indexer.learn.interactions import Interactions, interactions
from indexer.learn.questions import Question, questions
from indexer.learn.remembered import remembered
from indexer.learn.retrieval import Asked, ask
from indexer.learn.served_alike import difference
from indexer.learn.snapshot_ranker import SnapshotRanker
from indexer.learn.visits import make_visits, pasts
from services.errors import StartError
from services.replay import replay
from services.settings import Settings
from tests.snapshots import Shop, publish_shop

START = np.datetime64("2026-02-01T00:00:00", "ns")
FIRST = float(START.astype(np.int64) / 86_400e9)
SPLIT, END = FIRST + 6, FIRST + 10
ITEMS = 300
EVERYTHING = 10_000


def item_id(row: int) -> str:
    return f"i{row}"


@pytest.fixture(scope="module")
def log() -> Interactions:
    """160 sessions of 12 users and of nobody, a handful of items each, some begun at the same moment."""
    random = np.random.default_rng(5)
    session = np.repeat(np.arange(160), random.integers(2, 7, 160))
    minutes = (session // 2) * 180 + random.integers(0, 3, len(session))
    return interactions(
        random.integers(0, ITEMS, len(session)).astype(np.int32),
        np.full(len(session), PURCHASE, np.uint8),
        session.astype(np.int64) * 7 % 13 - 1,
        session.astype(np.int64),
        START + minutes.astype("timedelta64[m]"),
        n_items=ITEMS,
        seed=1,
    )


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("snapshots")
    publish_shop(root, Shop(count=ITEMS, tower=True))
    return root


def ranker_of(snapshots: Path) -> SnapshotRanker:
    name = current_id(snapshots)
    assert name is not None
    return SnapshotRanker(open_snapshot(snapshots / name), threads=1)


def both_settings(log: Interactions) -> list[Question]:
    asked = [*questions(log, SPLIT, END, known=True, seed=2), *questions(log, SPLIT, END, known=False, seed=2)]
    return sorted(asked, key=lambda each: (each.day, each.session))


def served(snapshots: Path, log: Interactions, asked: list[Question], mode: Mode, depth: int = 120) -> list[Answered]:
    known = list(pasts(asked, log, SPLIT, item_id, EVERYTHING))
    told: list[int] = []
    answers = replay(
        Settings(), snapshots, known, make_visits(asked, log, SPLIT, item_id), told.append, mode=mode, depth=depth
    )
    assert sum(told) == len(asked) == len(answers)
    return answers


def test_of_a_long_history_the_service_forgets_what_was_bought_first_as_is_expected(
    snapshots: Path, log: Interactions
) -> None:
    asked, kept = both_settings(log), 5
    known, visits = list(pasts(asked, log, SPLIT, item_id, kept)), make_visits(asked, log, SPLIT, item_id)
    settings = Settings.model_validate({"state": {"history_items": kept}})
    answers = replay(settings, snapshots, known, visits, lambda done: None, mode="shared", depth=60)
    ranker = ranker_of(snapshots)
    told = remembered(known, visits, ranker.items.row, kept)
    whole = ask(asked, log, 10_000)
    assert any(len(each.history) > len(mine) for each, mine in zip(whole, told, strict=True))
    cut = [Asked(each, history) for each, history in zip(asked, told, strict=True)]
    assert difference(cut, answers, ranker, "shared")["max"] <= 1e-4


@pytest.mark.parametrize("mode", ["shared", "personal"])
def test_the_service_scores_as_the_job_does_on_the_same_snapshot_and_histories(
    snapshots: Path, log: Interactions, mode: Mode
) -> None:
    asked = both_settings(log)
    answers = served(snapshots, log, asked, mode)
    assert not any(each.degraded for each in answers)
    found = difference(ask(asked, log, 10_000), answers, ranker_of(snapshots), mode)
    assert found["questions"] > 80
    assert found["max"] <= 1e-4
    assert found["above"] == 0
    assert found["same_top"] == 1.0


def test_the_order_in_which_a_basket_is_told_changes_no_score(snapshots: Path, log: Interactions) -> None:
    asked = both_settings(log)
    known = [backwards(each) for each in pasts(asked, log, SPLIT, item_id, EVERYTHING)]
    visits = [
        replace(each, before=tuple((session, told_backwards(deeds)) for session, deeds in each.before))
        for each in make_visits(asked, log, SPLIT, item_id)
    ]
    answers = replay(Settings(), snapshots, known, visits, lambda done: None, mode="shared", depth=120)
    found = difference(ask(asked, log, EVERYTHING), answers, ranker_of(snapshots), "shared")
    assert found["questions"] > 80
    assert found["max"] <= 1e-4
    assert found["same_top"] == 1.0


def backwards(past: UserPurchases) -> UserPurchases:
    """The same purchases, those of one moment in the other order."""
    items = past.items
    last = [max(at, before) for at, before in zip(items.at_ms, items.last_ms, strict=True)]
    order = sorted(range(len(last)), key=lambda at: (-last[at], -at))
    moments = items.at_ms, items.times, items.first_ms, items.last_ms
    at_ms, times, first_ms, last_ms = ([column[at] for at in order] for column in moments)
    turned = Bought([items.tags[at] for at in order], at_ms, times, first_ms, last_ms)
    return replace(past, item_ids=[past.item_ids[at] for at in order], items=turned)


def told_backwards(deeds: tuple[Deed, ...]) -> tuple[Deed, ...]:
    """The same deeds, those of one moment in the other order."""
    order = sorted(range(len(deeds)), key=lambda at: (deeds[at].at_ms, -at))
    return tuple(deeds[at] for at in order)


def test_pages_are_followed_to_the_depth_and_hold_nothing_twice(snapshots: Path, log: Interactions) -> None:
    asked = both_settings(log)[:6]
    answers = served(snapshots, log, asked, "shared", depth=250)
    for question, answer in zip(asked, answers, strict=True):
        assert answer.pages == 3
        assert len(answer.item_ids) == len(set(answer.item_ids)) == 250
        assert len(answer.scores) == 100
        known = {item_id(row) for row in question.context.rows}
        assert not known & set(answer.item_ids[:100])


def test_what_comes_after_a_question_does_not_change_its_answer(snapshots: Path, log: Interactions) -> None:
    asked = both_settings(log)
    early = asked[: len(asked) // 2]
    whole = served(snapshots, log, asked, "shared", depth=50)[: len(early)]
    alone = served(snapshots, log, early, "shared", depth=50)
    assert [each.item_ids for each in whole] == [each.item_ids for each in alone]
    assert all(np.array_equal(a.scores, b.scores) for a, b in zip(whole, alone, strict=True))


def test_a_service_that_refuses_a_call_ends_the_walk_with_its_words(snapshots: Path) -> None:
    advance: Callable[[int], None] = lambda done: None  # noqa: E731
    unlimited = Visit("u" * 300, 1_770_000_000_000, ())
    with pytest.raises(StartError, match="INVALID_ARGUMENT: user_id"):
        replay(Settings(), snapshots, [], [unlimited], advance, mode="shared", depth=10)
