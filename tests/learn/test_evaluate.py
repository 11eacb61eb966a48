"""The measures against those of scikit-learn, which come from other hands."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import (  # type: ignore[import-untyped]
    label_ranking_average_precision_score,
    ndcg_score,
    top_k_accuracy_score,
)

from indexer.learn.evaluate import hits, ndcg, recall, reciprocal_rank

ITEMS, QUESTIONS = 40, 60


@pytest.fixture
def scores() -> npt.NDArray[np.float64]:
    return np.random.default_rng(3).random((QUESTIONS, ITEMS))


def targets_of(count: int | None) -> list[npt.NDArray[np.int32]]:
    """`count` targets of each question; None: 1 to 12."""
    random = np.random.default_rng(4)
    sizes = random.integers(1, 13, QUESTIONS) if count is None else np.full(QUESTIONS, count)
    return [random.choice(ITEMS, size, replace=False).astype(np.int32) for size in sizes]


def marks(targets: list[npt.NDArray[np.int32]]) -> npt.NDArray[np.int64]:
    out = np.zeros((QUESTIONS, ITEMS), np.int64)
    for at, rows in enumerate(targets):
        out[at, rows] = 1
    return out


@pytest.mark.parametrize("k", [1, 10, 50])
def test_ndcg_is_that_of_scikit_learn(scores: npt.NDArray[np.float64], k: int) -> None:
    targets = targets_of(None)
    ours = ndcg(hits(np.argsort(-scores, axis=1), targets), targets, k)
    theirs = [
        ndcg_score(mark[None], given[None], k=k) for mark, given in zip(marks(targets), scores, strict=True)
    ]  # fmt: skip
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)


def test_the_reciprocal_rank_of_one_target_is_its_average_precision(scores: npt.NDArray[np.float64]) -> None:
    targets = targets_of(1)
    ours = reciprocal_rank(hits(np.argsort(-scores, axis=1), targets))
    theirs = label_ranking_average_precision_score(marks(targets), scores)
    assert ours.mean() == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize("k", [1, 5, 30])
def test_recall_of_one_target_is_top_k_accuracy(scores: npt.NDArray[np.float64], k: int) -> None:
    targets = targets_of(1)
    ours = recall(hits(np.argsort(-scores, axis=1), targets), targets, k)
    theirs = top_k_accuracy_score([rows[0] for rows in targets], scores, k=k, labels=np.arange(ITEMS))
    assert ours.mean() == pytest.approx(theirs, rel=1e-12)


def test_recall_counts_targets_that_were_not_found_and_padding_is_no_hit() -> None:
    ranked = np.array([[7, 3, -1, -1], [-1, -1, -1, -1]])
    targets = [np.array([3, 8, 9, 7], np.int32), np.array([1], np.int32)]
    hit = hits(ranked, targets)
    assert recall(hit, targets, 4).tolist() == [0.5, 0.0]
    assert recall(hit, targets, 1).tolist() == [0.25, 0.0]
    assert reciprocal_rank(hit).tolist() == [1.0, 0.0]


def test_a_list_shorter_than_k_is_measured_as_far_as_it_goes() -> None:
    ranked, targets = np.array([[5, 6]]), [np.array([6], np.int32)]
    assert ndcg(hits(ranked, targets), targets, 10)[0] == pytest.approx(1 / np.log2(3))
