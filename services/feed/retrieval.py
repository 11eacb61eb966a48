"""Vector retrieval: the candidates nearest to a session vector, among the items that may be shown."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from indexer.contract.features import Floats
from indexer.contract.inner_product import as_wide
from indexer.contract.items import Mask, Rows
from indexer.contract.manifest import IndexSpec

Nearest = tuple[Rows, Floats]
"""Rows int32 [k] and inner products float32 [k], best first."""


class Retriever:
    """A FAISS index and the item vectors beside it. For one thread at a time."""

    def __init__(
        self,
        index: faiss.Index,
        vectors: npt.NDArray[np.float16],
        *,
        index_spec: IndexSpec,
        exact_below: int,
        threads: int,
    ) -> None:
        self._index = index
        self._vectors = vectors
        self._nprobe = index_spec.nprobe
        self._exact_below = exact_below
        self._threads = threads

    @classmethod
    def load(
        cls,
        index: Path,
        vectors: npt.NDArray[np.float16],
        *,
        index_spec: IndexSpec,
        exact_below: int,
        threads: int,
    ) -> Retriever:
        """Reads the index. Raises ValueError when it does not hold `vectors` [n, d], or their widened form."""
        loaded = faiss.read_index(str(index))
        expected = len(vectors), index_spec.width or vectors.shape[1]
        if (loaded.ntotal, loaded.d) != expected or loaded.d < vectors.shape[1]:
            raise ValueError(f"{index.name}: {loaded.ntotal} x {loaded.d}, expected {' x '.join(map(str, expected))}")
        return cls(loaded, vectors, index_spec=index_spec, exact_below=exact_below, threads=threads)

    def search(self, queries: Floats, mask: Mask, k: int) -> list[Nearest]:
        """The best `k` rows for each of `queries` float32 [B, d] among the rows that `mask` (bool [n]) allows; fewer
        when there are fewer.

        Raises ValueError when a query is not finite.
        """
        if not np.isfinite(queries).all():
            raise ValueError("a query vector is not finite")
        allowed = int(np.count_nonzero(mask))
        if allowed == 0:
            return [(np.empty(0, np.int32), np.empty(0, np.float32))] * len(queries)
        if allowed < min(self._exact_below, len(mask)):
            return self._scan(queries, np.flatnonzero(mask).astype(np.int32), k)
        return self._search(queries, mask if allowed < len(mask) else None, min(k, allowed))

    def _search(self, queries: Floats, mask: Mask | None, k: int) -> list[Nearest]:
        faiss.omp_set_num_threads(self._threads)  # OpenMP keeps this for each thread apart
        parameters = _parameters(self._nprobe)
        if mask is not None:
            bits = np.packbits(mask, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
            parameters.sel = selector
        scores, rows = self._index.search(as_wide(queries, self._index.d), k, params=parameters)
        found = rows >= 0
        return [(rows[i][found[i]].astype(np.int32), scores[i][found[i]]) for i in range(len(queries))]

    def _scan(self, queries: Floats, rows: Rows, k: int) -> list[Nearest]:
        scores = queries @ self._vectors[rows].astype(np.float32).T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return [(rows[best], scores[i, best]) for i, best in enumerate(order)]


def _parameters(nprobe: int) -> faiss.SearchParameters:
    if not nprobe:
        return faiss.SearchParameters()
    parameters = faiss.SearchParametersIVF()
    parameters.nprobe = nprobe
    return parameters
