"""Filters as the retriever needs them: narrow ones with an exact index of their own, wide ones as a selection."""

from __future__ import annotations

from dataclasses import dataclass

import faiss
import numpy as np
from cachetools import LRUCache

from indexer.contract.ann_index import AnnIndex, Selection
from indexer.contract.items import Mask, Rows
from indexer.contract.vector_file import Half, half_index

_BYTES = 96 << 20
"""Of all prepared filters together."""


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows int32 [m], ascending, that a filter leaves, and an exact index of their vectors, in that order."""

    rows: Rows
    index: faiss.Index

    @property
    def nbytes(self) -> int:
        """Of both."""
        return int(self.rows.nbytes + self.index.ntotal * self.index.sa_code_size())


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is kept of a filter. `among`: held, so that no other can come to have its identity."""

    among: Mask | Rows
    count: int
    slice: Slice | None = None
    selection: Selection | None = None

    @property
    def nbytes(self) -> int:
        """What it takes, its mask or rows included."""
        prepared = self.slice or self.selection
        return max(1, self.among.nbytes) + (prepared.nbytes if prepared else 0)


class PreparedFilters:
    """The filters asked of last, by the identity of their masks or rows. For one thread at a time.

    What leaves fewer than `exact_below` items gets a slice; what leaves all gets neither.
    """

    def __init__(self, index: AnnIndex, vectors: Half, *, exact_below: int) -> None:
        self._index = index
        self._vectors = vectors
        self._exact_below = exact_below
        self._kept: LRUCache[int, Prepared] = LRUCache(_BYTES, getsizeof=lambda each: each.nbytes)

    def of(self, among: Mask | Rows) -> Prepared:
        """`among`, a mask bool [n] or rows int32, ascending, must not change afterwards."""
        found = self._kept.get(id(among))
        if found is None:
            found = self._prepare(among)
            if found.nbytes <= _BYTES:
                self._kept[id(among)] = found
        return found

    def _prepare(self, among: Mask | Rows) -> Prepared:
        of_rows, items = among.dtype != np.bool_, len(self._vectors)
        count = len(among) if of_rows else int(np.count_nonzero(among))
        if count in {0, items}:
            return Prepared(among, count)
        if count < self._exact_below:
            rows = among if of_rows else np.flatnonzero(among)
            rows = rows.astype(np.int32, copy=False)
            return Prepared(among, count, slice=Slice(rows, half_index(self._vectors[rows])))
        return Prepared(among, count, selection=self._index.select(among))
