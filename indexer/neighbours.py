"""The items that are bought or viewed together with each item: per-item lists for retrieval and features.

similarity(i, j) = c_ij / (sqrt(c_i c_j) + shrink), where c_ij counts the sessions that have both and c_i those that
have i; the shrinkage keeps pairs that met once or twice from leading (Koren and Bell, Recommender Systems Handbook).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from indexer.contract.neighbours import NOBODY
from indexer.progress import Advance
from indexer.rows_file import rows_file

Csr: TypeAlias = sparse.csr_matrix
_PAIRS_IN_MEMORY = 8_000_000
"""Pairs of one block before they are counted; 12 bytes each, three times over."""


def write_neighbours(
    sessions: Csr, ids: Path, weights: Path, *, count: int, shrink: float, longest: int, advance: Advance
) -> None:
    """Writes the `count` nearest of each item to two .npy files: int32 [n, count] and float16 [n, count].

    `sessions` float32 CSR [S, n] of ones. The lists are ordered, nearest first; -1 with weight 0 where there is no
    more. Sessions with more than `longest` items (a stock take, a robot) count no pairs. Memory is bounded by blocks of
    items; `advance` is told how many items are done.
    """
    n = sessions.shape[1]
    with (
        rows_file(ids, np.int32, (n, count)) as append_ids,
        rows_file(weights, np.float16, (n, count)) as append_weights,
    ):
        for first, stop, near, similar in blocks(sessions, count=count, shrink=shrink, longest=longest):
            append_ids(near)
            append_weights(similar)
            advance(stop - first)


def blocks(
    sessions: Csr, *, count: int, shrink: float, longest: int
) -> Iterator[tuple[int, int, npt.NDArray[np.int32], npt.NDArray[np.float16]]]:
    """The lists of `write_neighbours` by blocks of items: (first, stop, ids [., count], weights [., count])."""
    lengths = np.diff(sessions.indptr)
    used = sessions[(lengths > 1) & (lengths <= longest)]
    counts = np.asarray(used.sum(axis=0)).ravel()
    by_item = used.T.tocsr()
    pairs = np.concatenate([[0.0], np.cumsum(by_item @ np.diff(used.indptr).astype(np.float64))])
    first = 0
    while first < sessions.shape[1]:
        fits = int(np.searchsorted(pairs, pairs[first] + _PAIRS_IN_MEMORY, side="right")) - 1
        stop = max(first + 1, fits)
        met = (by_item[first:stop] @ used).tocoo()
        apart = met.row + first != met.col
        rows, columns, both = met.row[apart], met.col[apart], met.data[apart]
        similar = both / (np.sqrt(counts[rows + first] * counts[columns]) + shrink)
        yield first, stop, *_nearest(rows, columns, similar, stop - first, count)
        first = stop


def _nearest(
    rows: npt.NDArray[np.int32],
    columns: npt.NDArray[np.int32],
    similar: npt.NDArray[np.floating],
    size: int,
    count: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
    order = np.lexsort((columns, -similar, rows))
    rows = rows[order]
    place = np.arange(len(rows)) - np.searchsorted(rows, rows, side="left")
    kept = place < count
    ids = np.full((size, count), NOBODY, np.int32)
    weights = np.zeros((size, count), np.float16)
    ids[rows[kept], place[kept]] = columns[order][kept]
    weights[rows[kept], place[kept]] = similar[order][kept]
    return ids, weights
