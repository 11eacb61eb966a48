"""Vector retrieval: the candidates nearest to a session vector, among the items that may be shown.

Every call of FAISS is by `AnnIndex` or a `Slice`; see `gpu_retrieval` for the same on a device.
"""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np

from indexer.contract.ann_index import AnnIndex, found_rows, read_index, require_finite
from indexer.contract.features import Floats
from indexer.contract.items import Mask, Rows
from indexer.contract.manifest import IndexSpec
from indexer.contract.vector_file import Half
from services.feed.slices import PreparedFilters, Slice

Nearest = tuple[Rows, Floats]
"""Rows int32 [k] and inner products float32 [k], best first."""


class Retriever:
    """A FAISS index and the item vectors beside it. For one thread at a time.

    Filters that leave fewer than `exact_below` items are scanned exactly; for others the index is searched as the
    manifest says for what they leave.
    """

    def __init__(
        self, index: faiss.Index, vectors: Half, *, index_spec: IndexSpec, exact_below: int, threads: int
    ) -> None:
        self._index = AnnIndex(index, vectors, index_spec)
        self._filters = PreparedFilters(self._index, vectors, exact_below=exact_below)
        self._threads = threads

    @classmethod
    def load(cls, index: Path, vectors: Half, *, index_spec: IndexSpec, exact_below: int, threads: int) -> Retriever:
        """Reads the index. Raises ValueError when it does not hold `vectors` [n, d]."""
        loaded = read_index(index, vectors)
        return cls(loaded, vectors, index_spec=index_spec, exact_below=exact_below, threads=threads)

    def search(self, queries: Floats, among: Mask | Rows, k: int) -> list[Nearest]:
        """The best `k` rows for each of `queries` float32 [B, d]; fewer when there are fewer.

        `among`: a mask bool [n] of what may be found, or its rows int32, ascending. It must not change afterwards: what
        is prepared of it is kept by its identity.

        Raises ValueError when a query is not finite.
        """
        faiss.omp_set_num_threads(self._threads)  # OpenMP keeps this for each thread apart
        allowed = self._filters.of(among)
        if allowed.count == 0:
            return [(np.empty(0, np.int32), np.empty(0, np.float32))] * len(queries)
        if allowed.slice is not None:
            return _scan(queries, allowed.slice, k)
        return found_rows(self._index.search(queries, k, allowed.selection))


def _scan(queries: Floats, part: Slice, k: int) -> list[Nearest]:
    require_finite(queries)
    scores, places = part.index.search(queries, min(k, len(part.rows)))
    return [(part.rows[place], score) for place, score in zip(places, scores, strict=True)]
