"""The items that are bought or viewed together with each item: per-item lists for retrieval and features.

similarity(i, j) = c_ij / (sqrt(c_i c_j) + shrink), where c_ij counts the sessions that have both and c_i those that
have i; the shrinkage keeps pairs that met once or twice from leading (Koren and Bell, Recommender Systems Handbook).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from indexer.contract.neighbours import NOBODY
from indexer.progress import Advance

Csr: TypeAlias = sparse.csr_matrix
_PAIRS_IN_MEMORY = 8_000_000
"""Pairs of one block before they are counted; some 50 bytes each."""
_MOST = 2**31 - 1
_ROWS_IN_BLOCK = 1 << 16
"""Items of one block: a row of it has 16 bits of a sort key."""


def write_neighbours(
    sessions: Csr,
    ids: Path,
    weights: Path,
    *,
    count: int,
    shrink: float,
    longest: int,
    advance: Advance,
    pairs: int | None = None,
) -> None:
    """Writes the `count` nearest of each item to two .npy files, as `contract.neighbours.neighbour_lists` reads them.

    `sessions` float32 CSR [S, n] of ones, `longest` and `pairs` as in `paired`. The lists are ordered, nearest first,
    equal ones (in float16) by row. Memory is bounded by blocks of items; `advance` is told how many items are done.
    """
    used = paired(sessions, longest=longest, pairs=pairs)
    lengths: list[npt.NDArray[np.int32]] = [np.zeros(1, np.int32)]
    with ids.open("wb") as near_file, weights.open("wb") as weight_file:
        _header(weight_file, np.float16, 0)
        _header(near_file, np.int32, 0)
        near_file.seek(4 * (sessions.shape[1] + 1), os.SEEK_CUR)
        for near, similar in blocks(used, count=count, shrink=shrink):
            there = near != NOBODY
            near_file.write(near[there].data)
            weight_file.write(similar[there].data)
            lengths.append(there.sum(axis=1, dtype=np.int32))
            advance(len(near))
        starts = np.cumsum(np.concatenate(lengths), dtype=np.int64)
        if starts[-1] > _MOST:
            raise ValueError(f"{ids.name}: {starts[-1]:,} neighbours, at most {_MOST:,} are expected")
        _header(weight_file, np.float16, int(starts[-1]))
        _header(near_file, np.int32, len(starts) + int(starts[-1]))
        near_file.write(starts.astype(np.int32).data)


def _header(file: BinaryIO, dtype: type[np.generic], length: int) -> None:
    """At the file's beginning; of the same size whatever the length."""
    file.seek(0)
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (length,)})


def paired(sessions: Csr, *, longest: int, pairs: int | None = None) -> Csr:
    """The sessions that count pairs, of CSR [S, n] in order of time: those with 2 to `longest` items.

    Longer ones are a stock take or a robot. With `pairs` only the newest: as many as have at most so many pairs
    (items of a session, squared) together. Time and memory of all that counts pairs grow with that number.
    """
    lengths = np.diff(sessions.indptr).astype(np.int64)
    kept = (lengths > 1) & (lengths <= longest)
    if pairs is not None:
        kept &= np.cumsum((kept * lengths**2)[::-1])[::-1] <= pairs
    return sessions[kept]


def blocks(
    sessions: Csr, *, count: int, shrink: float
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]]:
    """The lists of `write_neighbours` by blocks of items, in order: ids [., count], weights [., count]."""
    items = sessions.shape[1]
    root = np.sqrt(np.bincount(sessions.indices, minlength=items)).astype(np.float32)
    by_item = sessions.T.tocsr()
    pairs = np.concatenate([[0.0], np.cumsum(by_item @ np.diff(sessions.indptr).astype(np.float64))])
    first = 0
    while first < items:
        fits = int(np.searchsorted(pairs, pairs[first] + _PAIRS_IN_MEMORY, side="right")) - 1
        stop = min(max(first + 1, fits), first + _ROWS_IN_BLOCK)
        met = sparse.csr_matrix(by_item[first:stop] @ sessions)
        rows = np.repeat(np.arange(stop - first), np.diff(met.indptr))
        similar = met.data / (root[first:stop][rows] * root[met.indices] + np.float32(shrink))
        apart = rows + first != met.indices
        yield _nearest(rows[apart], met.indices[apart], similar[apart], stop - first, count)
        first = stop


def _nearest(
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int32],
    similar: npt.NDArray[np.float32],
    size: int,
    count: int,
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
    """One sort of whole numbers: 16 bits of row, 16 of falling similarity (bits of float16 >= 0), 32 of column."""
    key = (rows.astype(np.uint64) << 16) | (0xFFFF - similar.astype(np.float16).view(np.uint16).astype(np.uint64))
    key = (key << 32) | columns.astype(np.uint64)
    key.sort()
    place = np.arange(len(rows)) - np.searchsorted(rows, np.arange(size))[rows]
    kept = np.flatnonzero(place < count)
    rows, place, key = rows[kept], place[kept], key[kept]
    ids = np.full((size, count), NOBODY, np.int32)
    weights = np.zeros((size, count), np.float16)
    ids[rows, place] = (key & 0xFFFFFFFF).astype(np.int32)
    weights[rows, place] = (0xFFFF - (key >> 32 & 0xFFFF)).astype(np.uint16).view(np.float16)
    return ids, weights
