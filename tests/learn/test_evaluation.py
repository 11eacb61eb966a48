from __future__ import annotations

import json

import numpy as np
import pytest

from indexer.contract.items import Rows
from indexer.learn.evaluation import compare, markdown, ndcg_at_10, sections, sessions_asked
from indexer.learn.measures import cold, coverage, measure, novel, whole
from indexer.learn.questions import questions
from indexer.learn.retrieval import Asked, ask
from tests.learn.shop import DAYS, FIRST_DAY, Shop

SPLIT, END = FIRST_DAY + 0.8 * DAYS, FIRST_DAY + DAYS


@pytest.fixture(scope="module")
def asked(shop: Shop) -> list[Asked]:
    return ask(questions(shop.log, SPLIT, END, known=True, seed=1, limit=60), shop.log, 10_000)


def known_answer(asked: list[Asked]) -> list[Rows]:
    """All targets, last one first, behind an item that is none."""
    return [np.concatenate([each.question.context.rows[:1], each.question.targets[::-1]]) for each in asked]


def test_what_is_new_to_the_user_is_measured_apart_from_what_was_bought_before(asked: list[Asked]) -> None:
    part = novel(asked)
    assert 0 < len(part) < len(asked)
    for each, targets in zip(
        [one for one, some in zip(asked, part.which, strict=True) if some], part.targets, strict=True
    ):
        assert not np.isin(targets, each.history.rows).any()
        assert np.isin(targets, each.question.targets).all()
    bought_first = [np.concatenate([each.history.rows, each.question.targets]) for each in asked]
    perfect = measure(part, bought_first)
    assert perfect["ndcg_at_10"].min() == perfect["recall_at_50"].min() == 1.0, "what was bought before is no noise"


def test_cold_items_are_those_without_an_event_before_the_window(asked: list[Asked], shop: Shop) -> None:
    sold = np.ones(shop.log.n_items, np.bool_)
    assert len(cold(asked, sold)) == 0
    assert all(values.size == 0 for values in measure(cold(asked, sold), known_answer(asked)).values())
    new = asked[0].question.targets[0]
    sold[new] = False
    part = cold(asked, sold)
    assert len(part) >= 1
    assert {int(row) for rows in part.targets for row in rows} == {int(new)}


def test_coverage_counts_what_is_shown_of_the_catalogue() -> None:
    ranked = [np.array([1, 2, 3], np.int32), np.array([2, 3, 4], np.int32), np.empty(0, np.int32)]
    assert coverage(ranked, 10, 2) == 0.3


def test_the_document_has_every_section_with_intervals_and_paired_lifts(asked: list[Asked], shop: Shop) -> None:
    sold = np.bincount(shop.log.before(SPLIT).rows, minlength=shop.log.n_items) > 0
    popular = [np.arange(50, dtype=np.int32) for _ in asked]
    rankings = {"two_stage": known_answer(asked), "popularity": popular}
    both = {"session": asked, "next_basket": asked}
    document = sections(both, {"session": rankings, "next_basket": rankings}, sold, seed=1)
    json.dumps(document, allow_nan=False)
    assert {"session", "next_basket", "novel", "cold", "lifts", "questions"} <= set(document)
    ours = document["session"]["two_stage"]
    assert {"ndcg_at_10", "ndcg_at_50", "recall_at_50", "recall_at_500", "mrr", "coverage_at_10", "interval"} <= set(
        ours
    )
    assert ours["interval"]["low"] <= ours["ndcg_at_10"] <= ours["interval"]["high"]
    assert ours["mrr"] == 0.5
    assert document["lifts"]["session"]["popularity"]["difference"]["low"] > 0
    assert document["session"] == document["next_basket"]
    assert document["questions"]["session"] == len(asked)
    assert document["questions"]["cold"] == 0
    assert document["cold"] == {}
    table = markdown(document, "session").splitlines()
    assert len(table) == 4
    assert all(line.count("|") == table[0].count("|") for line in table)


def test_a_lift_over_a_ranking_that_finds_nothing_is_null(asked: list[Asked], shop: Shop) -> None:
    nothing = [np.empty(0, np.int32) for _ in asked]
    rankings = {"two_stage": known_answer(asked), "nothing": nothing}
    document = sections({"session": asked}, {"session": rankings}, np.ones(shop.log.n_items, np.bool_), seed=1)
    assert document["lifts"]["session"]["nothing"]["lift"] is None
    assert (
        document["lifts"]["session"]["nothing"]["difference"]["mean"] == document["session"]["two_stage"]["ndcg_at_10"]
    )
    assert markdown(document, "session")


def test_child_and_parent_are_compared_pair_by_pair(asked: list[Asked]) -> None:
    better = ndcg_at_10(known_answer, asked)  # type: ignore[arg-type]
    users = np.array([each.question.user for each in asked])
    found = compare(better * 1.1, better, users, seed=1)
    assert (found.lift.low, found.lift.mean, found.lift.high) == pytest.approx((0.1, 0.1, 0.1))
    assert found.difference.mean == pytest.approx(0.1 * better.mean())


def test_both_settings_ask_about_the_same_sessions_of_users_with_a_past(shop: Shop) -> None:
    found = sessions_asked(shop.log, SPLIT, END, limit=40, seed=3)
    numbers = {name: [each.session for each in asked] for name, asked in found.items()}
    assert numbers["session"] == numbers["next_basket"] == sorted(numbers["session"])
    assert len(numbers["session"]) == 40
    assert all(len(each.context) == 0 for each in found["next_basket"])
    before = set(shop.log.users[shop.log.begun < SPLIT].tolist())
    assert {each.user for each in found["session"]} <= before
    assert sessions_asked(shop.log, FIRST_DAY, END, limit=40, seed=3)["session"] == [], (
        "everyone is new on the first day"
    )


def test_the_whole_is_every_question(asked: list[Asked]) -> None:
    assert len(whole(asked)) == len(asked)
