from __future__ import annotations

import numpy as np
import pytest

from indexer.learn.interactions import Interactions, interactions
from indexer.learn.questions import questions, window_starts
from tests.learn.shop import DAYS, FIRST_DAY, START, Shop


def build(*events: tuple[int, int, int, int, int], seed: int = 1) -> Interactions:
    """Events as (row, type, user, session, minute)."""
    rows, types, users, sessions, minutes = (np.array(column) for column in zip(*events, strict=True))
    moments = START + minutes.astype("timedelta64[m]")
    return interactions(rows.astype(np.int32), types.astype(np.uint8), users, sessions, moments, n_items=10, seed=seed)


def test_sessions_are_ordered_by_their_first_event_and_events_by_time() -> None:
    log = build((3, 5, 7, 200, 50), (1, 2, 7, 200, 40), (4, 5, 9, 100, 45), (2, 5, 9, 100, 60))
    assert log.rows.tolist() == [1, 3, 4, 2]
    assert log.starts.tolist() == [0, 2, 4]
    assert log.users.tolist() == [0, 1]
    assert np.all(np.diff(log.begun) > 0)


def test_the_latest_event_of_an_item_in_a_session_stands_for_all() -> None:
    log = build((3, 2, 7, 1, 0), (4, 2, 7, 1, 1), (3, 5, 7, 1, 2))
    assert log.rows.tolist() == [4, 3]
    assert log.types.tolist() == [2, 5]


def test_what_was_bought_stays_bought_whatever_is_done_with_it_later_in_the_session() -> None:
    log = build((3, 5, 7, 1, 0), (4, 2, 7, 1, 1), (3, 2, 7, 1, 2), (3, 2, 7, 2, 3))
    assert log.rows.tolist() == [4, 3, 3]
    assert log.types.tolist() == [2, 5, 2]


def test_items_of_one_timestamp_do_not_keep_the_order_of_the_file() -> None:
    one_basket = [(row, 5, 1, 1, 0) for row in range(10)]
    order = build(*one_basket).rows.tolist()
    assert sorted(order) == list(range(10))
    assert order != list(range(10))
    assert order == build(*reversed(one_basket)).rows.tolist()
    assert order != build(*one_basket, seed=2).rows.tolist()


def test_a_session_without_a_user_belongs_to_nobody() -> None:
    log = build((1, 5, -1, 1, 0), (2, 5, 5, 2, 1))
    assert log.users.tolist() == [-1, 0]
    order, offsets = log.sessions_of_users()
    assert (order.tolist(), offsets.tolist()) == ([1], [0, 1])


def test_a_row_outside_of_the_catalogue_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"rows: values in 0\.\.9 are expected, got 0\.\.10"):
        build((0, 5, 1, 1, 0), (10, 5, 1, 1, 0))


def test_no_events_are_fine() -> None:
    nothing = np.empty(0, np.int64)
    log = interactions(
        nothing.astype(np.int32),
        nothing.astype(np.uint8),
        nothing,
        nothing,
        nothing.astype("M8[ns]"),
        n_items=3,
        seed=1,
    )
    assert len(log) == 0
    assert log.matrix().shape == (0, 3)
    assert log.before(10.0).rows.size == 0


def test_before_a_day_nothing_of_that_day_or_later_is_left(shop: Shop) -> None:
    day = FIRST_DAY + DAYS / 2
    past = shop.log.before(day)
    assert 0 < len(past) < len(shop.log)
    assert past.days.max() < day
    assert past.starts[-1] == len(past.rows)
    assert past.matrix().sum() == len(past.rows)


def test_an_event_after_the_day_is_cut_from_a_session_that_began_before() -> None:
    log = build((1, 5, 1, 1, 0), (2, 5, 1, 1, 100), (3, 5, 1, 2, 50))
    past = log.before(float(log.begun[0]) + 60 / 1440)
    assert past.rows.tolist() == [1, 3]
    assert past.starts.tolist() == [0, 1, 2]


def test_a_question_knows_nothing_of_its_targets(shop: Shop) -> None:
    asked = questions(shop.log, FIRST_DAY + 50, FIRST_DAY + 80, known=True, seed=1)
    assert len(asked) > 300
    for each in asked:
        span = shop.log.session(each.session)
        together = np.concatenate([each.context.rows[::-1], each.targets])
        assert together.tolist() == shop.log.rows[span].tolist()
        assert 1 <= len(each.context) <= 5
        assert len(each.targets) >= 1
        assert FIRST_DAY + 50 <= each.day < FIRST_DAY + 80
    assert {len(each.context) for each in asked} == {1, 2, 3, 4}


def test_the_next_basket_knows_no_item_of_it_and_samples_are_repeatable(shop: Shop) -> None:
    some = questions(shop.log, 0, FIRST_DAY + DAYS, known=False, seed=1, limit=50)
    assert len(some) == 50
    assert all(len(each.context) == 0 for each in some)
    again = questions(shop.log, 0, FIRST_DAY + DAYS, known=False, seed=1, limit=50)
    other = questions(shop.log, 0, FIRST_DAY + DAYS, known=False, seed=2, limit=50)
    assert [each.session for each in some] == [each.session for each in again]
    assert [each.session for each in some] != [each.session for each in other]


def test_windows_hold_their_share_of_the_sessions(shop: Shop) -> None:
    start, later = window_starts(shop.log.begun, (0.2, 0.1))
    assert abs((shop.log.begun >= start).mean() - 0.3) < 0.01
    assert abs((shop.log.begun >= later).mean() - 0.1) < 0.01
