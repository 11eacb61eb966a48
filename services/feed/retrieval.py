"""Retrieval: the candidates nearest to a query vector, among the items that may be shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from indexer.contract.features import Context, Floats, query_vector
from indexer.contract.items import Mask, Rows
from indexer.contract.manifest import IndexSpec, QuerySpec

CANDIDATES = 500
Candidates = tuple[Rows, Floats]
"""Rows int32 [C] and inner products float32 [C], best first; C <= 500."""


class Retriever:
    """A FAISS index and the item vectors beside it. For one thread at a time."""

    def __init__(
        self,
        index: faiss.Index,
        vectors: npt.NDArray[np.float16],
        *,
        index_spec: IndexSpec,
        query: QuerySpec,
        exact_below: int,
        threads: int,
    ) -> None:
        self._index = index
        self._vectors = vectors
        self._nprobe = index_spec.nprobe
        self._query = query
        self._exact_below = exact_below
        self._threads = threads

    @classmethod
    def load(
        cls,
        index: Path,
        vectors: Path,
        *,
        shape: tuple[int, int],
        index_spec: IndexSpec,
        query: QuerySpec,
        exact_below: int,
        threads: int,
    ) -> Retriever:
        """Reads the index; the vectors are memory-mapped. Raises ValueError when either is not of `shape` (n, d)."""
        loaded = faiss.read_index(str(index))
        mapped = np.load(vectors, mmap_mode="r", allow_pickle=False)
        if (loaded.ntotal, loaded.d) != shape:
            raise ValueError(f"{index.name}: {loaded.ntotal} x {loaded.d}, expected {shape[0]} x {shape[1]}")
        if mapped.dtype != np.float16 or mapped.shape != shape:
            raise ValueError(f"{vectors.name}: {mapped.dtype} {mapped.shape}, expected float16 {shape}")
        return cls(loaded, mapped, index_spec=index_spec, query=query, exact_below=exact_below, threads=threads)

    def retrieve(self, contexts: Sequence[Context], mask: Mask, k: int = CANDIDATES) -> list[Candidates]:
        """The best `k` rows for each context among the rows that `mask` (bool [n]) allows; fewer when there are fewer.

        Raises ValueError when a query vector is not finite.
        """
        queries = np.stack([query_vector(self._vectors, context, self._query) for context in contexts])
        if not np.isfinite(queries).all():
            raise ValueError("a query vector is not finite")
        allowed = int(np.count_nonzero(mask))
        if allowed == 0:
            return [(np.empty(0, np.int32), np.empty(0, np.float32))] * len(contexts)
        if allowed < min(self._exact_below, len(mask)):
            return self._scan(queries, np.flatnonzero(mask).astype(np.int32), k)
        return self._search(queries, mask if allowed < len(mask) else None, min(k, allowed))

    def _search(self, queries: Floats, mask: Mask | None, k: int) -> list[Candidates]:
        faiss.omp_set_num_threads(self._threads)  # OpenMP keeps this for each thread apart
        parameters = _parameters(self._nprobe)
        if mask is not None:
            bits = np.packbits(mask, bitorder="little")
            selector = faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
            parameters.sel = selector
        scores, rows = self._index.search(queries, k, params=parameters)
        found = rows >= 0
        return [(rows[i][found[i]].astype(np.int32), scores[i][found[i]]) for i in range(len(queries))]

    def _scan(self, queries: Floats, rows: Rows, k: int) -> list[Candidates]:
        scores = queries @ self._vectors[rows].astype(np.float32).T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return [(rows[best], scores[i, best]) for i, best in enumerate(order)]


def _parameters(nprobe: int) -> faiss.SearchParameters:
    if not nprobe:
        return faiss.SearchParameters()
    parameters = faiss.SearchParametersIVF()
    parameters.nprobe = nprobe
    return parameters
