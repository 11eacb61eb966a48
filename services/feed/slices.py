"""Filters as the retriever needs them: narrow ones with an exact index of their own, wide ones as a selection."""

from __future__ import annotations

from dataclasses import dataclass

import faiss
import numpy as np
from cachetools import LRUCache

from indexer.contract.ann_index import AnnIndex, Selection
from indexer.contract.items import Mask, Rows
from indexer.contract.vector_file import Half, half_index

_BYTES = 192 << 20
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
    """What is kept of a filter. `mask`: held, so that no other mask can come to have its identity."""

    mask: Mask
    count: int
    slice: Slice | None = None
    selection: Selection | None = None

    @property
    def nbytes(self) -> int:
        """What it takes, its mask included."""
        prepared = self.slice or self.selection
        return self.mask.nbytes + (prepared.nbytes if prepared else 0)


class PreparedFilters:
    """The filters asked of last, by the identity of their masks. For one thread at a time.

    A mask that leaves fewer than `exact_below` items gets a slice; one that leaves all gets neither.
    """

    def __init__(self, index: AnnIndex, vectors: Half, *, exact_below: int) -> None:
        self._index = index
        self._vectors = vectors
        self._exact_below = exact_below
        self._kept: LRUCache[int, Prepared] = LRUCache(_BYTES, getsizeof=lambda each: each.nbytes)

    def of(self, mask: Mask) -> Prepared:
        """`mask` bool [n] must not change afterwards."""
        found = self._kept.get(id(mask))
        if found is None:
            found = self._prepare(mask)
            if found.nbytes <= _BYTES:
                self._kept[id(mask)] = found
        return found

    def _prepare(self, mask: Mask) -> Prepared:
        count = int(np.count_nonzero(mask))
        if 0 < count < min(self._exact_below, len(mask)):
            rows = np.flatnonzero(mask).astype(np.int32)
            return Prepared(mask, count, slice=Slice(rows, half_index(self._vectors[rows])))
        if 0 < count < len(mask):
            return Prepared(mask, count, selection=self._index.select(mask))
        return Prepared(mask, count)
