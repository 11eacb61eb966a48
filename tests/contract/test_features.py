from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract.features import PURCHASE, Context, make_context, query_vector, weights
from indexer.contract.manifest import QuerySpec
from tests.properties import examples

COUNT = 12
SPEC = QuerySpec(decay=0.5)
EVENTS = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(1, 5)), max_size=30)


def context(*events: tuple[int, int], max_events: int = 20) -> Context:
    return make_context([row for row, _ in events], [kind for _, kind in events], max_events)


@examples(100)
@given(EVENTS, st.integers(1, 10))
def test_a_context_is_the_latest_event_or_the_purchase_of_each_of_the_last_items(
    events: list[tuple[int, int]], limit: int
) -> None:
    made = context(*events, max_events=limit)
    wanted: dict[int, int] = {}
    for row, kind in events:
        wanted.setdefault(row, kind)
        if kind == PURCHASE:
            wanted[row] = PURCHASE
    assert list(zip(made.rows.tolist(), made.types.tolist(), strict=True)) == list(wanted.items())[:limit]


@examples(100)
@given(EVENTS, st.floats(1e-6, 1))
def test_weights_sum_to_one_and_are_never_negative(events: list[tuple[int, int]], decay: float) -> None:
    made = context(*events)
    share = weights(made, QuerySpec(decay=decay))
    assert share.shape == (len(made),)
    assert share.dtype == np.float32
    assert (share >= 0).all()
    assert not len(made) or share.sum() == pytest.approx(1, abs=1e-5)


def test_a_purchase_weighs_twice_a_view_and_an_older_event_less() -> None:
    assert weights(context((0, 5), (1, 2)), SPEC) == pytest.approx([0.8, 0.2])
    assert weights(context((0, 2), (1, 2)), SPEC) == pytest.approx([2 / 3, 1 / 3])


@examples(100)
@given(EVENTS.filter(bool), st.integers(0, 5))
def test_the_query_has_length_one(events: list[tuple[int, int]], seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((COUNT, 8)).astype(np.float16)
    query = query_vector(vectors, context(*events), SPEC)
    assert query.dtype == np.float32
    assert np.linalg.norm(query) == pytest.approx(1, abs=1e-4)


def test_the_query_of_one_item_is_its_direction() -> None:
    vectors = np.array([[3, 4], [1, 0]], np.float16)
    assert query_vector(vectors, context((0, 2)), SPEC) == pytest.approx([0.6, 0.8])


def test_opposite_vectors_give_a_query_of_zero_and_not_nan() -> None:
    vectors = np.array([[1, 0], [-1, 0]], np.float16)
    query = query_vector(vectors, context((0, 2), (1, 2)), QuerySpec(decay=1))
    assert query.tolist() == [0, 0]
