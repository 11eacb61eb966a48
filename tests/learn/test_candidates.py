from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from indexer.contract.blend import ANN, HISTORY, NEIGHBOURS, Blend, BlendSpec, blend, ranked_list
from indexer.contract.candidates import (
    CANDIDATE_MASK,
    FEATURES,
    INPUTS,
    Shelf,
    Shopper,
    attended,
    blended_features,
    ranker_tensors,
)
from indexer.contract.features import EMPTY as NOTHING_SEEN
from indexer.contract.features import Context
from indexer.contract.history import EMPTY as NOTHING_BOUGHT
from indexer.contract.history import History, RepurchaseSpec
from indexer.contract.neighbours import NOBODY, NeighbourSpec, neighbour_candidates
from indexer.contract.towers import BEFORE

ITEMS, DIMENSION, NEAR = 60, 8, 6


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    random = np.random.default_rng(4)
    neighbours = np.stack([random.permutation(ITEMS)[:NEAR] for _ in range(ITEMS)]).astype(np.int32)
    neighbours[::5, -2:] = NOBODY
    price = random.uniform(1, 20, ITEMS).astype(np.float32)
    price[3] = np.nan
    return Shelf(
        vectors=random.standard_normal((ITEMS, DIMENSION)).astype(np.float16),
        neighbours=neighbours,
        similarities=random.uniform(0.1, 1, (ITEMS, NEAR)).astype(np.float16),
        price=price,
        category=random.integers(-1, 4, ITEMS).astype(np.int32),
        popularity=random.uniform(0, 1, ITEMS).astype(np.float32),
        near=NeighbourSpec(decay=0.5),
        repurchase=RepurchaseSpec(),
    )


@pytest.fixture(scope="module")
def shopper() -> Shopper:
    history = History(
        np.array([7, 9, 11], np.int32),
        np.array([3, 1, 2], np.int32),
        np.array([10.0, 70.0, 20.0]),
        np.array([90.0, 70.0, 60.0]),
        4,
    )
    vector = np.random.default_rng(5).standard_normal(DIMENSION).astype(np.float32)
    return Shopper(Context(np.array([1, 2], np.int32), np.array([5, 2], np.uint8)), history, 100.0, vector)


def candidates() -> Blend:
    lists = ((ANN, [5, 7, 3, 20]), (NEIGHBOURS, [5, 8]), (HISTORY, [7, 11]))
    return blend([ranked_list(source, np.array(rows, np.int32), BlendSpec()) for source, rows in lists])


def column(features: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
    return features[:, FEATURES.index(name)]


def test_every_column_says_what_it_is_documented_to_say(shelf: Shelf, shopper: Shopper) -> None:
    found = candidates()
    features = blended_features(shelf, shopper, found)
    assert features.shape == (len(found), len(FEATURES))
    assert features.dtype == np.float32
    assert column(features, "blend_score")[0] == 1
    np.testing.assert_allclose(column(features, "blend_rank"), np.log1p(np.arange(len(found))), rtol=1e-6)
    for name, rows in (("from_ann", [3, 5, 7, 20]), ("from_neighbours", [5, 8]), ("from_history", [7, 11])):
        assert sorted(found.rows[column(features, name) > 0]) == rows
    vectors = shelf.vectors.astype(np.float32)
    scores = vectors[found.rows] @ shopper.vector
    np.testing.assert_allclose(column(features, "retrieval"), scores - scores.max(), atol=1e-5)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(column(features, "like_newest"), unit[found.rows] @ unit[1], atol=1e-5)
    like = (unit[found.rows] @ unit[[1, 2]].T).max(axis=1)
    np.testing.assert_allclose(column(features, "like_context"), like, atol=1e-5)
    bought = np.isin(found.rows, shopper.history.rows)
    assert column(features, "bought").tolist() == bought.astype(float).tolist()
    times = dict(zip(shopper.history.rows.tolist(), shopper.history.times.tolist(), strict=True))
    wanted = [np.log1p(times.get(int(row), 0)) for row in found.rows]
    np.testing.assert_allclose(column(features, "times"), wanted, rtol=1e-6)
    mean = (2 * shelf.price[1] + 0.5 * shelf.price[2]) / 2.5
    for at, row in enumerate(found.rows):
        ratio = np.log(shelf.price[row] / mean) if row != 3 else 0.0
        assert column(features, "context_price")[at] == pytest.approx(ratio, abs=1e-5)
    np.testing.assert_allclose(column(features, "repeat_rate"), 0.5)
    np.testing.assert_allclose(column(features, "history_size"), np.log(5), rtol=1e-6)


def test_co_occurrence_is_that_of_the_neighbour_source(shelf: Shelf, shopper: Shopper) -> None:
    every = np.arange(ITEMS, dtype=np.int32)[::-1].copy()
    found = ranked_list(ANN, every, BlendSpec())
    features = blended_features(shelf, shopper, found)
    weights = np.array([1.0, 0.5], np.float32)
    rows, scores = neighbour_candidates(shelf.neighbours, shelf.similarities, shopper.context.rows, weights, ITEMS)
    wanted = np.zeros(ITEMS, np.float32)
    wanted[rows] = scores
    np.testing.assert_allclose(column(features, "with_context"), np.log1p(wanted[every]), rtol=1e-5)
    best = np.zeros(ITEMS, np.float32)
    for item in (1, 2):
        there = shelf.neighbours[item] != NOBODY
        np.maximum.at(best, shelf.neighbours[item][there], shelf.similarities[item][there].astype(np.float32))
    np.testing.assert_allclose(column(features, "with_best"), best[every], rtol=1e-5)


def test_category_shares_count_weights_and_never_the_absence_of_a_category(shelf: Shelf, shopper: Shopper) -> None:
    category = np.full(ITEMS, -1, np.int32)
    category[[1, 5, 7, 9]] = 2
    features = blended_features(replace(shelf, category=category), shopper, candidates())
    rows = candidates().rows
    share = column(features, "context_category")
    np.testing.assert_allclose(share, np.where(np.isin(rows, [5, 7]), 2 / 2.5, 0), rtol=1e-5)
    share = column(features, "history_category")
    np.testing.assert_allclose(share, np.where(np.isin(rows, [5, 7]), 4 / 6, 0), rtol=1e-5)


@pytest.mark.parametrize("context", [True, False])
@pytest.mark.parametrize("history", [True, False])
def test_whatever_is_unknown_every_number_is_finite(
    shelf: Shelf, shopper: Shopper, context: bool, history: bool
) -> None:
    bare = replace(
        shelf,
        price=np.where(np.arange(ITEMS) % 2 == 0, np.nan, 0.0).astype(np.float32),
        popularity=np.zeros(ITEMS, np.float32),
        vectors=np.zeros_like(shelf.vectors),
    )
    who = replace(
        shopper,
        context=shopper.context if context else NOTHING_SEEN,
        history=shopper.history if history else NOTHING_BOUGHT,
    )
    for on in (shelf, bare):
        assert np.isfinite(blended_features(on, who, candidates())).all()
    none = Blend(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint8))
    assert blended_features(shelf, who, none).shape == (0, len(FEATURES))


def test_a_batch_holds_what_each_question_has_alone_and_zeros_beyond(shelf: Shelf, shopper: Shopper) -> None:
    lone = replace(shopper, context=NOTHING_SEEN, history=NOTHING_BOUGHT)
    few = Blend(candidates().rows[:2], candidates().scores[:2], candidates().sources[:2])
    batch = ranker_tensors(shelf, [shopper, lone], [candidates(), few], places=4)
    assert tuple(batch) == (*INPUTS, CANDIDATE_MASK)
    assert batch[CANDIDATE_MASK].tolist() == [
        [True] * len(candidates()),
        [True] * 2 + [False] * (len(candidates()) - 2),
    ]
    alone = ranker_tensors(shelf, [lone], [few], places=4)
    assert alone["context_mask"].shape == (1, 1)
    assert not alone["context_mask"].any()
    first = batch["features"][1, :2].astype(np.float32)
    np.testing.assert_allclose(first, alone["features"][0].astype(np.float32), atol=1e-6)
    assert not batch["features"][1, 2:].any()
    assert batch["context_mask"].tolist() == [[True] * 4, [False] * 4]
    assert batch["context_types"][0].tolist() == [5, 2, BEFORE, BEFORE]
    np.testing.assert_array_equal(batch["context_vectors"][0], shelf.vectors[[1, 2, 7, 9]].astype(np.float32))
    assert attended(shopper, 100).rows.tolist() == [1, 2, 7, 9, 11]
