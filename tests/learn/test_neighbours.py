from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from indexer import neighbours
from indexer.contract.neighbours import (
    NOBODY,
    NeighbourSpec,
    context_neighbours,
    neighbour_candidates,
    neighbour_lists,
    top,
)
from indexer.learn.svd import embed, ppmi
from tests.learn.shop import Shop


def test_lists_equal_those_of_the_formula_whatever_the_blocks(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = shop.log.matrix()
    dense = sessions.toarray()
    met = dense.T @ dense
    counts = dense.sum(axis=0)
    similar = met / (np.sqrt(np.outer(counts, counts)) + 3)
    np.fill_diagonal(similar, 0)
    for pairs in (8_000_000, 500):
        monkeypatch.setattr(neighbours, "_PAIRS_IN_MEMORY", pairs)
        done: list[int] = []
        paths = tmp_path / "ids.npy", tmp_path / "weights.npy"
        neighbours.write_neighbours(sessions, *paths, count=20, shrink=3, longest=100, advance=done.append)
        near = neighbour_lists(np.load(paths[0], mmap_mode="r"), np.load(paths[1], mmap_mode="r"), shop.log.n_items)
        ids, weights = (lists[np.arange(shop.log.n_items)] for lists in near)
        assert (str(ids.dtype), str(weights.dtype)) == ("int32", "float16")
        longest = ids.shape[1]
        assert longest == min(20, int((similar > 0).sum(axis=1).max()))
        assert sum(done) == shop.log.n_items
        assert len(done) > 1 or pairs > 500
        np.testing.assert_allclose(weights, -np.sort(-similar, axis=1)[:, :longest], atol=1e-3)
        for row in range(shop.log.n_items):
            known = ids[row] != NOBODY
            order = np.lexsort((ids[row][known], -weights[row][known]))
            np.testing.assert_array_equal(order, np.arange(known.sum()))
            np.testing.assert_allclose(similar[row][ids[row][known]], weights[row][known], atol=1e-3)
            assert np.all(weights[row][~known] == 0)


def test_a_session_that_is_too_long_counts_no_pairs() -> None:
    sessions = neighbours.paired(sparse.csr_matrix(np.array([[1, 1, 0, 0], [1, 1, 1, 1]], np.float32)), longest=3)
    ((ids, _),) = neighbours.blocks(sessions, count=2, shrink=0)
    assert ids.tolist() == [[1, NOBODY], [0, NOBODY], [NOBODY, NOBODY], [NOBODY, NOBODY]]


def test_only_the_newest_sessions_count_pairs_when_there_are_too_many() -> None:
    sessions = sparse.csr_matrix(np.array([[1, 1, 1], [0, 1, 1], [1, 1, 0], [1, 0, 0], [1, 0, 1]], np.float32))
    for pairs, kept in ((None, [0, 1, 2, 4]), (21, [0, 1, 2, 4]), (20, [1, 2, 4]), (11, [2, 4]), (8, [2, 4]), (3, [])):
        used = neighbours.paired(sessions, longest=300, pairs=pairs)
        np.testing.assert_array_equal(used.toarray(), sessions.toarray()[kept])


def test_equally_similar_items_are_ordered_by_row() -> None:
    sessions = sparse.csr_matrix(np.ones((1, 5), np.float32))
    ((ids, weights),) = neighbours.blocks(sessions, count=3, shrink=1)
    assert ids.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2], [0, 1, 2]]
    assert np.all(weights == np.float16(0.5))


def test_a_catalogue_without_sessions_has_empty_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "_ROWS_IN_BLOCK", 2)
    found = list(neighbours.blocks(sparse.csr_matrix((3, 5), dtype=np.float32), count=2, shrink=0))
    assert [len(ids) for ids, _ in found] == [2, 2, 1]
    assert all((ids == NOBODY).all() and not weights.any() for ids, weights in found)


def test_candidates_add_up_over_the_context() -> None:
    ids = np.array([[1, 2, NOBODY], [0, 2, NOBODY], [0, 1, NOBODY]], np.int32)
    weights = np.array([[0.5, 0.25, 0], [0.5, 0.125, 0], [0.25, 0.125, 0]], np.float16)
    rows, scores = neighbour_candidates(ids, weights, np.array([0, 1], np.int32), np.array([1, 0.5], np.float32), 2)
    assert rows.tolist() == [1, 2]
    np.testing.assert_allclose(scores, [0.5, 0.3125])
    nothing, _ = context_neighbours(ids, weights, np.empty(0, np.int32), NeighbourSpec())
    assert len(nothing) == 0


def test_top_is_stable_and_complete() -> None:
    scores = np.array([1, 3, 2, 3, 0], np.float32)
    assert top(scores, 3).tolist() == [1, 3, 2]
    assert top(scores, 9).tolist() == [1, 3, 2, 0, 4]
    assert top(scores, 0).tolist() == []


def test_ppmi_equals_the_formula() -> None:
    dense = (np.random.default_rng(1).random((60, 8)) < 0.3).astype(np.float32)
    dense = dense[dense.sum(axis=1) > 1]
    met = (dense / (dense.sum(axis=1, keepdims=True) - 1)).T @ dense
    np.fill_diagonal(met, 0)
    marginal = met.sum(axis=1)
    smoothed = marginal**0.75 / (marginal**0.75).sum()
    with np.errstate(divide="ignore"):
        expected = np.maximum(np.log(met / np.outer(marginal, smoothed)), 0)
    ours = ppmi(sparse.csr_matrix(dense)).toarray()
    np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_embeddings_keep_the_strongest_directions() -> None:
    random = np.random.default_rng(2)
    factors = random.standard_normal((50, 4)).astype(np.float32)
    matrix = sparse.csr_matrix(factors @ factors.T)
    vectors = embed(matrix, 6, seed=1)
    assert vectors.shape == (50, 6)
    np.testing.assert_allclose(vectors @ vectors.T, matrix.toarray(), atol=1e-3)
    for threads in (1, 2, 200):
        np.testing.assert_array_equal(vectors, embed(matrix, 6, seed=1, threads=threads))
    assert embed(sparse.csr_matrix((3, 3), dtype=np.float32), 6, seed=1).shape == (3, 6)
