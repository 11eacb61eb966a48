"""What single queries take on this machine, by one thread."""

from __future__ import annotations

import time
from collections.abc import Sequence

import faiss
import numpy as np

from indexer.ann.truth import CANDIDATES
from indexer.contract.ann_index import AnnIndex
from indexer.contract.features import Floats
from indexer.contract.manifest import SearchPoint

_QUERIES = 128


def measured_ms(points: Sequence[tuple[AnnIndex, SearchPoint]], queries: Floats) -> list[dict[str, float]]:
    """For each point the median and the 99th percentile of single queries, in turn, so that noise meets all alike."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    taken: list[list[float]] = [[] for _ in points]
    try:
        for at in range(min(_QUERIES, len(queries))):
            for (index, point), times in zip(points, taken, strict=True):
                start = time.perf_counter()
                index.search(queries[at : at + 1], CANDIDATES, point=point)
                times.append(1e3 * (time.perf_counter() - start))
    finally:
        faiss.omp_set_num_threads(threads)
    return [
        {
            "measured_p50_ms": round(float(np.median(each)), 3),
            "measured_p99_ms": round(float(np.percentile(each, 99)), 3),
        }
        for each in taken
    ]
