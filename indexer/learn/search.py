"""Vector search for questions of the past: exact where that is quick, else in an index of lists that is used once."""

from __future__ import annotations

from collections.abc import Callable

import faiss
import numpy as np
import numpy.typing as npt

from indexer.ann.kinds import LISTS
from indexer.ann.metric import QueryMetric
from indexer.ann.partition import partition
from indexer.contract.features import Floats
from indexer.contract.items import Rows
from indexer.mapped import let_go

Search = Callable[[Floats, int], Rows]
"""Rows int32 [B, k] of the highest inner products with queries float32 [B, d], best first; -1 where none is left."""

_CHUNK = 65_536
_PROBED = 10
"""One list of so many is looked into."""


def search_in(vectors: npt.NDArray[np.float16], *, exact_up_to: int, seed: int) -> Search:
    """Of float16 [n, d]: exact up to so many vectors, beyond by lists in the metric of the first queries asked."""
    return exact_search(vectors) if len(vectors) <= exact_up_to else listed_search(vectors, seed=seed)


def exact_search(vectors: npt.NDArray[np.float16]) -> Search:
    """Inner products with all of float16 [n, d], by FAISS."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    for first in range(0, len(vectors), _CHUNK):
        index.add(vectors[first : first + _CHUNK].astype(np.float32))

    def search(queries: Floats, count: int) -> Rows:
        return np.asarray(index.search(queries, min(count, index.ntotal))[1], np.int32)

    return search


def listed_search(vectors: npt.NDArray[np.float16], *, seed: int) -> Search:
    """A tenth of the lists of an index of bytes over float16 [n, d], as `indexer.ann` makes them.

    Exact search costs the product of questions and items, and 4 bytes a number; this one a fifteenth, and 1 byte.
    """
    lists = 1 << round(np.log2(len(vectors)) / 2)
    point = faiss.SearchParametersIVF()
    point.nprobe = max(1, lists // _PROBED)
    built: list[faiss.Index] = []

    def search(queries: Floats, count: int) -> Rows:
        if not built:
            metric = QueryMetric.of(queries, vectors.shape[1])
            parts = partition(vectors, np.arange(len(vectors)), lists, seed, _unseen, metric=metric)
            built.append(LISTS["ivf_sq8"].build(parts, vectors, seed, _unseen))
            let_go(vectors)
        return np.asarray(built[0].search(queries, min(count, len(vectors)), params=point)[1], np.int32)

    return search


def _unseen(rows: int) -> None:
    """Progress that is part of another stage's."""
