"""Features of a batch are those of each question alone."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.contract.blend import Blend
from indexer.contract.candidates import CANDIDATE_MASK, FEATURES, Shelf, Shopper, ranker_tensors
from indexer.contract.features import Context
from indexer.contract.history import EMPTY, History, RepurchaseSpec
from indexer.contract.items import Rows
from indexer.contract.neighbours import NOBODY, NeighbourSpec
from indexer.contract.sources import without
from tests.contract.plain_features import plain_features

ITEMS = 300
DIMENSION = 16
ROUNDING = 2e-6


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    """Items with gaps: no price, no category, vectors of no length, few or no neighbours, one above the sieve."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((ITEMS, DIMENSION)).astype(np.float16)
    vectors[:5] = 0
    neighbours = rng.integers(0, ITEMS, (ITEMS, 40)).astype(np.int32)
    lengths = rng.integers(0, 41, ITEMS)
    neighbours[np.arange(40) >= lengths[:, None]] = NOBODY
    price = rng.lognormal(1, 1, ITEMS).astype(np.float32)
    price[rng.random(ITEMS) < 0.2] = np.nan
    return Shelf(
        vectors,
        neighbours,
        rng.random((ITEMS, 40)).astype(np.float16),
        price,
        rng.integers(-1, 8, ITEMS).astype(np.int32),
        rng.random(ITEMS).astype(np.float32),
        NeighbourSpec(last=7, decay=0.8),
        RepurchaseSpec(square=(0.1,) * 6),
    )


def some(rng: np.random.Generator, most: int) -> Rows:
    return rng.permutation(ITEMS)[: rng.integers(0, most + 1)].astype(np.int32)


def asked(rng: np.random.Generator) -> tuple[Shopper, Blend]:
    known, bought, rows = some(rng, 12), some(rng, 60), some(rng, 50)
    last = 100.0 - np.sort(rng.random(len(bought)) * 50)
    times = rng.integers(1, 6, len(bought)).astype(np.int32)
    history = History(bought, times, last - rng.random(len(bought)) * 20, last, 2 * len(bought))
    context = Context(known, rng.integers(1, 7, len(known)).astype(np.uint8))
    scores = -np.sort(-rng.random(len(rows))).astype(np.float32)
    found = Blend(rows, scores, rng.integers(1, 16, len(rows)).astype(np.uint8))
    return Shopper(context, history, 101.0, rng.standard_normal(DIMENSION).astype(np.float32)), found


@pytest.mark.parametrize("size", [1, 2, 7, 32])
def test_a_batch_has_the_features_of_each_question_alone(shelf: Shelf, size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(20):
        batch = [asked(rng) for _ in range(size)]
        tensors = ranker_tensors(shelf, [shopper for shopper, _ in batch], [found for _, found in batch], places=10)
        for at, (shopper, found) in enumerate(batch):
            want, got = plain_features(shelf, shopper, found), tensors["features"][at]
            np.testing.assert_allclose(got[: len(found)], want, rtol=ROUNDING, atol=ROUNDING)
            assert not got[len(found) :].any()
            assert tensors[CANDIDATE_MASK][at].sum() == len(found)


def test_neighbours_are_matched_by_their_row_and_not_by_its_last_bits() -> None:
    count = 3 * 4096
    neighbours = np.full((count, 2), NOBODY, np.int32)
    neighbours[1] = (5 + 4096, 5)
    known = Shopper(
        Context(np.array([1], np.int32), np.array([2], np.uint8)),
        EMPTY,
        0.0,
        np.zeros(2, np.float32),
    )
    of = np.zeros(count, np.float32)
    shelf = Shelf(
        np.ones((count, 2), np.float16), neighbours, np.full((count, 2), 0.5, np.float16), of, of.astype(np.int32), of,
        NeighbourSpec(), RepurchaseSpec(),
    )  # fmt: skip
    found = Blend(np.array([4095, 5 + 2 * 4096, 5], np.int32), np.ones(3, np.float32), np.ones(3, np.uint8))
    features = ranker_tensors(shelf, [known] * 3, [found] * 3, 5)["features"]
    assert features[:, :, FEATURES.index("with_best")].tolist() == [[0.0, 0.0, 0.5]] * 3


@pytest.mark.parametrize("known", [0, 3, 50, 51, 200])
def test_rows_that_are_known_are_left_out_in_order(known: int) -> None:
    rng = np.random.default_rng(known)
    rows, away = rng.permutation(400)[:300].astype(np.int32), rng.permutation(400)[:known].astype(np.int32)
    gone = set(away.tolist())
    assert without(rows, away).tolist() == [row for row in rows.tolist() if row not in gone]
