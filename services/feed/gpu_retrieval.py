"""Vector retrieval on a CUDA device, the same questions and answers as `retrieval.Retriever`.

The plain choice is an exact index of all vectors in float16: a batch reads them once, and recall is 1. On a device
FAISS 1.15 passes over selectors. So where a filter leaves much of the catalogue, more is asked for and thinned out;
where it leaves less, it has an exact index of its own, made of its rows on first use. No answer is short: where too few
of the more are allowed, the filter's own index is asked. The snapshot's own index, where it is of a kind for devices,
answers what is not filtered; it was tuned for that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from cachetools import LRUCache

from indexer.contract.ann_index import lists_of, mask_of, read_index
from indexer.contract.features import Floats
from indexer.contract.items import Mask, Rows
from indexer.contract.manifest import IndexSpec
from indexer.contract.vector_file import Half
from services.feed.gpu import MOST, DeviceIndex, Gpu
from services.feed.retrieval import Nearest

_CHUNK = 65_536
_MORE = 1.25
"""A filter's share of the nearest items is not its share of all: so much deeper is looked at first."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """A filter's own index, of `rows` int32 [m]. `among`: held, so that no other can come to have its identity."""

    among: Mask | Rows
    rows: Rows
    index: DeviceIndex


class GpuRetriever:
    """The item vectors on a device. For one thread at a time.

    `spec` None: `index` is exact. `slice_bytes` bounds the filters' own indexes together, with their masks; one copy of
    all vectors is the least.
    """

    def __init__(self, gpu: Gpu, index: DeviceIndex, vectors: Half, spec: IndexSpec | None, slice_bytes: int) -> None:
        self.is_exact = spec is None or spec.kind == "flat"
        self._gpu = gpu
        self._index = index
        self._vectors = vectors
        self._refine = spec.refine if spec else 0.0
        self._slices: LRUCache[int, _Slice] = LRUCache(
            max(slice_bytes, vectors.nbytes + len(vectors)),
            getsizeof=lambda each: each.among.nbytes + len(each.rows) * vectors.shape[1] * vectors.itemsize,
        )

    @classmethod
    def exact(cls, gpu: Gpu, vectors: Half, *, slice_bytes: int) -> GpuRetriever:
        """All of `vectors` float16 [n, d], memory-mapped, onto the device."""
        return cls(gpu, gpu.flat(_chunks(vectors), vectors.shape[1]), vectors, None, slice_bytes)

    @classmethod
    def load(cls, gpu: Gpu, index: Path, vectors: Half, *, index_spec: IndexSpec, slice_bytes: int) -> GpuRetriever:
        """The snapshot's index onto the device. Raises ValueError when it lacks vectors, or is of a kind for CPUs."""
        loaded = read_index(index, vectors)
        lists = lists_of(loaded)
        if lists is not None:
            lists.nprobe = index_spec.nprobe
        return cls(gpu, gpu.clone(loaded), vectors, index_spec, slice_bytes)

    def search(self, queries: Floats, among: Mask | Rows, k: int) -> list[Nearest]:
        """As `Retriever.search`. `among` must not change afterwards: indexes are kept by its identity.

        Raises ValueError when a query is not finite.
        """
        if not np.isfinite(queries).all():
            raise ValueError("a query vector is not finite")
        items, of_rows = len(self._vectors), among.dtype != np.bool_
        allowed = len(among) if of_rows else int(np.count_nonzero(among))
        k = min(k, allowed)
        if allowed == 0:
            return [(np.empty(0, np.int32), np.empty(0, np.float32))] * len(queries)
        if allowed == items:
            return self._unfiltered(queries, k)
        deep = math.ceil(_MORE * k * items / allowed)
        if deep > MOST or not self.is_exact:
            return self._slice(queries, among, k)
        found = self._thinned(queries, mask_of(among, items), min(deep, items), k)
        short = [at for at, (rows, _) in enumerate(found) if len(rows) < k]
        for at, each in zip(short, self._slice(queries[short], among, k) if short else (), strict=True):
            found[at] = each
        return found

    def _unfiltered(self, queries: Floats, k: int) -> list[Nearest]:
        """The best `k` of all; where the snapshot refines, of so many times `k`, scored by the vectors."""
        deep = min(math.ceil(max(1.0, self._refine) * k), len(self._vectors), MOST)
        scores, rows = self._index.search(queries, deep)
        found: list[Nearest] = []
        for query, score, row in zip(queries, scores, rows, strict=True):
            known = row[row >= 0].astype(np.int32)
            best = score[row >= 0]
            if self._refine:
                best = self._vectors[known].astype(np.float32) @ query
                order = np.argsort(-best, kind="stable")
                known, best = known[order], best[order]
            found.append((known[:k], best[:k]))
        return found

    def _thinned(self, queries: Floats, mask: Mask, deep: int, k: int) -> list[Nearest]:
        """The best `k` of the best `deep` of all that `mask` allows."""
        scores, rows = self._index.search(queries, deep)
        kept = mask[rows] & (rows >= 0)
        return [
            (row[keep][:k].astype(np.int32), score[keep][:k])
            for row, score, keep in zip(rows, scores, kept, strict=True)
        ]

    def _slice(self, queries: Floats, among: Mask | Rows, k: int) -> list[Nearest]:
        """The best `k` of the rows that `among` allows, by their own index."""
        kept = self._slices.get(id(among))
        if kept is None:
            rows = (np.flatnonzero(among) if among.dtype == np.bool_ else among).astype(np.int32, copy=False)
            kept = _Slice(among, rows, self._gpu.flat(_chunks(self._vectors, rows), self._vectors.shape[1]))
            self._slices[id(among)] = kept
        scores, places = kept.index.search(queries, k)
        return [(kept.rows[place], score) for score, place in zip(scores, places, strict=True)]


@dataclass(frozen=True, slots=True)
class OnGpu:
    """A device, what of a snapshot is searched there, and the bytes that filters' own indexes may take."""

    gpu: Gpu
    index: Literal["flat", "snapshot"]
    slice_bytes: int

    def retriever(self, index: Path, vectors: Half, index_spec: IndexSpec) -> GpuRetriever:
        """Of one snapshot. Raises ValueError as `GpuRetriever.load`."""
        if self.index == "flat":
            return GpuRetriever.exact(self.gpu, vectors, slice_bytes=self.slice_bytes)
        return GpuRetriever.load(self.gpu, index, vectors, index_spec=index_spec, slice_bytes=self.slice_bytes)


def _chunks(vectors: Half, rows: Rows | None = None) -> Iterator[Floats]:
    """The vectors, or those of some rows, as float32 [c, d]."""
    for start in range(0, len(vectors) if rows is None else len(rows), _CHUNK):
        piece = slice(start, start + _CHUNK)
        yield (vectors[piece] if rows is None else vectors[rows[piece]]).astype(np.float32)
