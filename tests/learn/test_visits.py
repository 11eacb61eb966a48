from __future__ import annotations

from collections import defaultdict
from itertools import permutations

import numpy as np
import pytest

from indexer.contract.features import PURCHASE
from indexer.contract.history import EMPTY, History, latest_first
from indexer.contract.purchases import UserPurchases, session_tag
from indexer.contract.visits import Deed, Visit
from indexer.learn.histories import Histories
from indexer.learn.interactions import Interactions, interactions
from indexer.learn.questions import questions
from indexer.learn.remembered import remembered
from indexer.learn.visits import make_visits, milliseconds, pasts, user_name

START = np.datetime64("2026-01-01T00:00:00", "ns")
FIRST = float(START.astype(np.int64) / 86_400e9)
SPLIT = FIRST + 5
EVERYTHING = 10_000


def random_log(seed: int) -> Interactions:
    """Sessions of many minutes that overlap, of a few users, views among the purchases."""
    random = np.random.default_rng(seed)
    count = 600
    session = random.integers(0, 120, count)
    begun = random.integers(0, 10 * 24 * 60, 120)
    minutes = begun[session] + random.integers(0, 90, count)
    return interactions(
        random.integers(0, 30, count).astype(np.int32),
        random.choice([2, PURCHASE], count).astype(np.uint8),
        session.astype(np.int64) % 7 - 1,
        session.astype(np.int64),
        START + minutes.astype("timedelta64[m]"),
        n_items=30,
        seed=seed,
    )


def item_id(row: int) -> str:
    return f"i{row}"


class Shopkeeper:
    """Remembers the sessions in which a user bought an item, as a service would that is told what `visits` say."""

    def __init__(self, known: list[UserPurchases]) -> None:
        self.times: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.last: dict[tuple[str, str], int] = {}
        self._in: set[tuple[str, str, str]] = set()
        for user in known:
            for at, item in enumerate(user.item_ids):
                key = user.user_id, item
                self.times[key] = 1 + user.items.times[at]
                self.last[key] = max(user.items.at_ms[at], user.items.last_ms[at])
                self._in.add((*key, user.items.tags[at]))

    def hears(self, visit: Visit) -> None:
        for session, deeds in visit.before:
            for deed in deeds:
                assert deed.at_ms <= visit.at_ms
                if deed.type == PURCHASE:
                    key = visit.user_id, deed.item_id
                    self.times[key] += (*key, session_tag(session)) not in self._in
                    self._in.add((*key, session_tag(session)))
                    self.last[key] = max(self.last.get(key, 0), deed.at_ms)


@pytest.mark.parametrize("seed", range(8))
def test_a_service_that_is_told_the_visits_knows_exactly_what_training_knows(seed: int) -> None:
    log = random_log(seed)
    asked = questions(log, SPLIT, FIRST + 11, known=True, seed=seed)
    histories = Histories(log)
    shopkeeper = Shopkeeper(list(pasts(asked, log, SPLIT, item_id, EVERYTHING)))
    compared = 0
    for question, visit in zip(asked, make_visits(asked, log, SPLIT, item_id), strict=True):
        shopkeeper.hears(visit)
        if question.user < 0:
            assert not visit.before
            assert visit.user_id == ""
            continue
        expected = histories.at(question.user, question.session, question.day)
        mine = {item: times for (user, item), times in shopkeeper.times.items() if user == user_name(question.user)}
        assert mine == {item_id(row): times for row, times in zip(expected.rows, expected.times, strict=True)}
        for row, last in zip(expected.rows, expected.last, strict=True):
            assert shopkeeper.last[user_name(question.user), item_id(row)] == milliseconds(last)
        compared += len(mine)
    assert compared > 100


def test_what_is_known_of_the_session_is_said_in_its_order_and_never_later_than_the_question() -> None:
    log = random_log(1)
    asked = questions(log, SPLIT, FIRST + 11, known=True, seed=1)
    for question, visit in zip(asked, make_visits(asked, log, SPLIT, item_id), strict=True):
        assert [deed.item_id for deed in visit.known] == [item_id(row) for row in question.context.rows[::-1]]
        assert [deed.type for deed in visit.known] == question.context.types[::-1].tolist()
        assert all(deed.at_ms <= visit.at_ms for deed in visit.known)
    assert [visit.at_ms for visit in make_visits(asked, log, SPLIT, item_id)] == sorted(
        milliseconds(each.day) for each in asked
    )


def test_pasts_are_latest_first_with_the_latest_session_apart() -> None:
    moments = START + np.array([0, 0, 60, 60, 120], "timedelta64[m]")
    rows, sessions = np.array([1, 2, 1, 3, 9], np.int32), np.array([1, 1, 2, 2, 3])
    log = interactions(
        rows, np.full(5, PURCHASE, np.uint8), np.zeros(5, np.int64), sessions, moments, n_items=10, seed=1
    )
    start = FIRST + 100 / 1440
    asked = questions(log, FIRST, FIRST + 1, known=False, seed=1)
    (past,) = pasts(asked, log, start, item_id, EVERYTHING)
    assert set(past.item_ids[:2]) == {"i1", "i3"}
    assert past.item_ids[2] == "i2"
    at = past.item_ids.index("i1")
    first, second = milliseconds(FIRST), milliseconds(FIRST + 60 / 1440)
    assert (past.items.at_ms[at], past.items.times[at]) == (second, 1)
    assert (past.items.first_ms[at], past.items.last_ms[at]) == (first, first)
    assert past.items.tags[at] == past.anything.tags[0] == session_tag("session-1")
    assert (past.anything.at_ms[0], past.anything.times[0]) == (second, 1)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_remembered_of_short_histories_is_what_training_knows(seed: int) -> None:
    log = random_log(seed)
    asked = questions(log, SPLIT, FIRST + 11, known=True, seed=seed)
    visits = make_visits(asked, log, SPLIT, item_id)
    told = remembered(list(pasts(asked, log, SPLIT, item_id, EVERYTHING)), visits, lambda name: int(name[1:]), 10_000)
    histories = Histories(log)
    for question, mine in zip(asked, told, strict=True):
        expected = histories.at(question.user, question.session, question.day)
        assert mine.rows.tolist() == expected.rows.tolist()
        np.testing.assert_allclose(mine.last, expected.last, atol=1e-7)
        np.testing.assert_allclose(mine.first, expected.first, atol=1e-7)
        assert mine.times.tolist() == expected.times.tolist()


def test_items_of_one_moment_come_in_one_order_whatever_order_they_were_kept_in() -> None:
    rows, last = np.array([7, 20, 9, 4], np.int32), np.array([3.0, 5.0, 5.0 + 1e-10, 5.0])
    for order in permutations(range(4)):
        at = list(order)
        history = latest_first(History(rows[at], rows[at] + 1, last[at] - 1, last[at], 4))
        assert history.rows.tolist() == [20, 4, 9, 7]
        assert history.times.tolist() == [21, 5, 10, 8]
        assert history.last.tolist() == [5.0, 5.0, 5.0 + 1e-10, 3.0]
    assert latest_first(EMPTY).rows.tolist() == []


def test_the_first_of_a_large_basket_are_a_fair_sample_of_it() -> None:
    rows, days = np.arange(200, dtype=np.int32), np.full(200, 5.0)
    first = latest_first(History(rows, rows + 1, days, days, 1)).rows[:20]
    assert np.bincount(first // 50, minlength=4).min() >= 4


def test_an_item_that_was_forgotten_and_is_bought_again_counts_from_one() -> None:
    deeds = [Deed(f"i{row}", PURCHASE, 1000 * at) for at, row in enumerate((1, 2, 1, 3, 4, 1))]
    visits = [Visit("u", 9000, (), ((f"s{at}", (deed,)),)) for at, deed in enumerate(deeds)]
    told = remembered([], visits, lambda name: int(name[1:]), 2)
    assert [each.rows.tolist() for each in told] == [[1], [2, 1], [1, 2], [3, 1], [4, 3], [1, 4]]
    assert [each.times.tolist() for each in told] == [[1], [1, 1], [2, 1], [1, 2], [1, 1], [1, 1]]
    assert [each.sessions for each in told] == [1, 2, 3, 4, 5, 6]
    assert remembered([], [Visit("", 1, ())], lambda name: None, 2)[0].sessions == 0
