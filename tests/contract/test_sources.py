from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract.blend import ANN, HISTORY, NEIGHBOURS, POPULARITY, Blend, BlendSpec, ranked_list, source_names
from indexer.contract.candidates import Shelf
from indexer.contract.history import EMPTY, History, RepurchaseSpec
from indexer.contract.items import Rows
from indexer.contract.neighbours import NeighbourSpec
from indexer.contract.sources import CANDIDATES, Shared, first, history_lists, join, personal, share
from tests.properties import examples

COUNT = 40
SPEC = BlendSpec(ann=1, neighbours=2, history=3)
ROWS = st.lists(st.integers(0, COUNT - 1), max_size=COUNT, unique=True)


def rows(values: list[int]) -> Rows:
    return np.array(values, np.int32)


def shelf() -> Shelf:
    """Item i has the neighbours i + 1, i + 2, i + 3."""
    near = (np.arange(COUNT)[:, None] + [1, 2, 3]) % COUNT
    similar = np.tile(np.array([0.9, 0.6, 0.3], np.float16), (COUNT, 1))
    nothing = np.zeros(COUNT, np.float32)
    return Shelf(
        np.eye(COUNT, 8, dtype=np.float16),
        near.astype(np.int32),
        similar,
        nothing,
        np.zeros(COUNT, np.int32),
        nothing,
        NeighbourSpec(),
        RepurchaseSpec(),
    )


def history(values: list[int]) -> History:
    """Bought once each, the first of `values` last."""
    days = 100.0 - np.arange(len(values), dtype=np.float64)
    return History(rows(values), np.ones(len(values), np.int32), days, days, max(1, len(values)))


def shared(ann: list[int], near: list[int], context: list[int]) -> Shared:
    return share(rows(ann), rows(near), rows(context), np.linspace(0, 1, 8, dtype=np.float32), SPEC)


@examples(100)
@given(ROWS, ROWS, ROWS)
def test_what_is_shared_names_each_item_once_and_none_of_the_context(
    ann: list[int], near: list[int], context: list[int]
) -> None:
    found = shared(ann, near, context).candidates
    assert set(found.rows.tolist()) == (set(ann) | set(near)) - set(context)
    assert len(np.unique(found.rows)) == len(found)
    assert (np.diff(found.scores) <= 0).all()
    for row, bits in zip(found.rows.tolist(), found.sources.tolist(), strict=True):
        assert bits == ANN * (row in ann) + NEIGHBOURS * (row in near)


def test_what_is_shared_is_what_float16_keeps_of_it() -> None:
    found = shared(list(range(20)), [30, 31], [5])
    assert np.array_equal(found.candidates.scores, found.candidates.scores.astype(np.float16).astype(np.float32))
    assert np.array_equal(found.vector, found.vector.astype(np.float16).astype(np.float32))


def test_no_more_is_shared_than_a_cached_answer_holds() -> None:
    many = np.arange(2000, dtype=np.int32)
    assert len(share(many, many[::-1], rows([]), np.zeros(8, np.float32), SPEC).candidates) == CANDIDATES


@examples(100)
@given(ROWS, ROWS, ROWS, st.sets(st.integers(0, COUNT - 1)))
def test_a_history_adds_what_may_be_shown_and_takes_nothing_away(
    ann: list[int], context: list[int], bought: list[int], hidden: set[int]
) -> None:
    allowed = np.array([row not in hidden for row in range(COUNT)])
    base = shared([row for row in ann if allowed[row]], [], context)
    found = personal(base, shelf(), rows(context), history(bought), 101.0, SPEC, allowed)
    assert set(base.candidates.rows.tolist()) <= set(found.rows.tolist())
    added = set(found.rows.tolist()) - set(base.candidates.rows.tolist())
    assert not added & hidden
    assert not added & set(context)
    bought_here = set(bought) - set(context) - hidden
    assert bought_here <= set(found.rows.tolist())
    from_history = set(found.rows[(found.sources & HISTORY) > 0].tolist())
    assert from_history == bought_here


def test_without_a_history_the_shared_candidates_stand_as_they_are() -> None:
    base = shared([1, 2], [3], [])
    assert personal(base, shelf(), rows([]), EMPTY, 0.0, SPEC, None) is base.candidates


def test_neighbours_of_the_history_stand_in_where_nothing_of_the_session_is_known() -> None:
    again, near = history_lists(shelf(), rows([]), history([10]), 101.0, None)
    assert (again.tolist(), near.tolist()) == ([10], [11, 12, 13])
    assert history_lists(shelf(), rows([4]), history([10]), 101.0, None)[1].tolist() == []


def test_joining_is_blending_all_lists_at_once() -> None:
    base = Blend(*(getattr(ranked_list(ANN, rows([1, 2, 3]), SPEC), name) for name in ("rows", "scores", "sources")))
    found = join(base, rows([3, 9]), rows([9]), SPEC)
    assert found.rows.tolist() == [9, 3, 1, 2]
    assert found.sources.tolist() == [HISTORY | NEIGHBOURS, ANN | HISTORY, ANN, ANN]
    assert first(found, 2).rows.tolist() == [9, 3]


def test_popular_items_that_stand_in_are_named() -> None:
    found = ranked_list(POPULARITY, rows([7]), SPEC)
    assert source_names(int(found.sources[0])) == ("popularity",)
    assert found.scores[0] == ranked_list(ANN, rows([7]), SPEC).scores[0]
