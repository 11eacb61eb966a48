from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract.features import (
    EMPTY,
    FEATURES,
    PRICE_RATIO_CAP,
    Context,
    candidate_features,
    make_context,
    query_vector,
    ranker_inputs,
    weights,
)
from indexer.contract.items import ItemTable, build_id_index
from indexer.contract.manifest import QuerySpec, TensorSpec
from tests.contract.test_items import columns
from tests.properties import examples

COUNT = 12
SPEC = QuerySpec(decay=0.5)
DECLARED = (TensorSpec(name="features", dtype="float32", shape=("batch", "candidates", 5), columns=FEATURES),)
PRICES = st.one_of(
    st.none(),
    st.sampled_from([0.0, float("nan"), float("inf"), -1.0, 1e-45, 1e-38, 3e38]),
    st.floats(0.0625, 1000, width=32),
)
EVENTS = st.lists(st.tuples(st.integers(0, COUNT - 1), st.integers(1, 5)), max_size=30)


def shop(prices: list[float | None] | None = None, categories: list[str | None] | None = None) -> ItemTable:
    ids = [f"i{row}" for row in range(COUNT)]
    given_prices = prices or [float(1 + row) for row in range(COUNT)]
    given_categories = categories or [["tea", "cups", None][row % 3] for row in range(COUNT)]
    popularity = [row / COUNT for row in range(COUNT)]
    table = columns(ids, price=given_prices, category=given_categories, popularity=popularity)
    return ItemTable(table, build_id_index(ids, COUNT))


def context(*events: tuple[int, int], max_events: int = 20) -> Context:
    return make_context([row for row, _ in events], [kind for _, kind in events], max_events)


def candidates(*rows: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    return np.array(rows, np.int32), np.linspace(1, 0, len(rows), dtype=np.float32)


@examples(100)
@given(EVENTS, st.integers(1, 10))
def test_a_context_is_the_latest_event_of_each_of_the_last_items(events: list[tuple[int, int]], limit: int) -> None:
    made = context(*events, max_events=limit)
    wanted: dict[int, int] = {}
    for row, kind in events:
        wanted.setdefault(row, kind)
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


def test_features_say_what_their_names_say() -> None:
    rows, scores = candidates(0, 1, 3)
    out = candidate_features(shop(), context((3, 2), (1, 5)), SPEC, rows, scores)
    share = np.array([0.5, 0.5])  # 1 x 1 and 0.5 x 2
    mean = float(share @ [4, 2])
    assert out[:, 0] == pytest.approx([1, 0.5, 0])
    assert out[:, 1] == pytest.approx([0, 1 / 12, 3 / 12])
    assert out[:, 2] == pytest.approx([0, 0.5, 1])
    assert out[:, 3] == pytest.approx([0.5, 0.5, 0.5])
    assert out[:, 4] == pytest.approx([abs(np.log(price / mean)) for price in (1, 2, 4)])


def test_items_without_a_category_match_nothing() -> None:
    rows, scores = candidates(2)
    out = candidate_features(shop(), context((2, 2), (5, 2)), SPEC, rows, scores)
    assert out[0, 3] == 0


def test_an_empty_context_leaves_the_shared_features_only() -> None:
    rows, scores = candidates(4, 2)
    out = candidate_features(shop(), EMPTY, SPEC, rows, scores)
    assert out[:, :2] == pytest.approx(np.array([[1, 4 / 12], [0, 2 / 12]]))
    assert not out[:, 2:].any()


@examples(200)
@given(st.lists(PRICES, min_size=COUNT, max_size=COUNT), EVENTS, st.lists(st.integers(0, COUNT - 1), max_size=COUNT))
def test_features_are_finite_whatever_the_prices(
    prices: list[float | None], events: list[tuple[int, int]], rows: list[int]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = candidate_features(shop(prices), context(*events), SPEC, *candidates(*rows))
    assert out.shape == (len(rows), len(FEATURES))
    assert out.dtype == np.float32
    assert np.isfinite(out).all()
    assert (out[:, 4] >= 0).all()
    assert (out[:, 4] <= PRICE_RATIO_CAP).all()


def test_unknown_and_zero_prices_compare_as_equal() -> None:
    prices: list[float | None] = [None, 0.0, 5.0, *[1.0] * (COUNT - 3)]
    rows, scores = candidates(0, 1, 2)
    assert candidate_features(shop(prices), context((3, 2)), SPEC, rows, scores)[:2, 4].tolist() == [0, 0]
    assert candidate_features(shop(prices), context((0, 2), (1, 2)), SPEC, rows, scores)[:, 4].tolist() == [0, 0, 0]


@examples(80)
@given(EVENTS, st.permutations(range(COUNT)))
def test_the_order_of_the_candidates_does_not_change_their_features(
    events: list[tuple[int, int]], order: list[int]
) -> None:
    rows, scores = candidates(*range(COUNT))
    straight = candidate_features(shop(), context(*events), SPEC, rows, scores)
    permuted = candidate_features(shop(), context(*events), SPEC, rows[order], scores[order])
    assert permuted == pytest.approx(straight[order], abs=1e-6)


@examples(80)
@given(st.lists(st.integers(0, COUNT), min_size=1, max_size=8))
def test_a_batch_holds_each_question_as_if_alone_and_zeros_beyond(sizes: list[int]) -> None:
    rng = np.random.default_rng(len(sizes))
    blocks = [rng.random((size, len(FEATURES)), np.float32) for size in sizes]
    batch = ranker_inputs(DECLARED, blocks)["features"]
    assert batch.shape == (len(sizes), max(sizes), len(FEATURES))
    for padded, block in zip(batch, blocks, strict=True):
        alone = ranker_inputs(DECLARED, [block])["features"][0]
        assert np.array_equal(padded[: len(block)], alone)
        assert not padded[len(block) :].any()


@pytest.mark.parametrize(("name", "names"), [("mystery", FEATURES), ("features", FEATURES[::-1]), ("features", ())])
def test_an_input_that_this_version_cannot_make_is_named(name: str, names: tuple[str, ...]) -> None:
    declared = (TensorSpec(name=name, dtype="float32", shape=("batch", "candidates", 5), columns=names),)
    with pytest.raises(ValueError, match=f"'{name}'"):
        ranker_inputs(declared, [np.zeros((1, 5), np.float32)])
