"""The kinds of index that are tried, each made of the same lists: what they are called, hold and cost.

ivf_sq8      8-bit codes of what the centroid leaves over: 1 byte a number
ivf_pq       4-bit codes of pairs of numbers, scanned 32 at a time; a quarter of the bytes, coarse: deep refinement
ivf_rabitq   the signs of the randomly rotated rest (Gao and Long, RaBitQ, 2024), scanned 32 at a time: an eighth
hnsw         a graph over 8-bit codes; no lists; its links take more memory than its codes

Refinement scores candidates by the float16 vectors, which are in memory anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import faiss
import numpy as np

from indexer.ann.cost import Pace
from indexer.ann.partition import Partition, chunks
from indexer.contract.features import Floats
from indexer.contract.vector_file import Half
from indexer.progress import Advance

DEGREE = 16
_CONSTRUCTION = 80
_ID = 8


@dataclass(frozen=True, slots=True)
class Lists:
    """A kind with inverted lists. `bits` of a number in a code, `extra` bytes of a vector beside it.

    `name` is what manifests call it; `refine`: the depths that are tried, as `SearchPoint.refine`.
    """

    name: str
    bits: int
    extra: int
    refine: tuple[float, ...]
    pace: Pace
    build: Callable[[Partition, Half, int, Advance], faiss.Index]

    def bytes(self, items: int, width: int) -> int:
        """What the index takes in memory, about."""
        return items * (width * self.bits // 8 + self.extra + _ID)


def build_flat(vectors: Half, advance: Advance) -> faiss.Index:
    """Exact, of float16 [n, d]."""
    index = faiss.IndexFlatIP(vectors.shape[1])
    for _, chunk in chunks(vectors):
        index.add(chunk)
        advance(len(chunk))
    return index


def graph_bytes(items: int, width: int) -> int:
    """What a graph takes in memory, about."""
    return items * (width + 4 * (2 * DEGREE + 2))


def build_graph(partition: Partition, vectors: Half, advance: Advance) -> faiss.Index:
    """HNSW over 8-bit codes. By one thread: links depend on the order in which items come."""
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        index = faiss.IndexHNSWSQ(
            vectors.shape[1],
            faiss.ScalarQuantizer.QT_8bit,  # type: ignore[arg-type]
            DEGREE,
            faiss.METRIC_INNER_PRODUCT,
        )
        index.hnsw.efConstruction = _CONSTRUCTION
        index.train(partition.sample)
        for _, chunk in chunks(vectors):
            index.add(partition.metric.moved(chunk))
            advance(len(chunk))
    finally:
        faiss.omp_set_num_threads(threads)
    return _asked_through(partition.metric.queries, index)


def _sq8(partition: Partition, vectors: Half, seed: int, advance: Advance) -> faiss.Index:
    del seed
    index = faiss.IndexIVFScalarQuantizer(
        _quantizer(partition.centroids),
        vectors.shape[1],
        len(partition.centroids),
        faiss.ScalarQuantizer.QT_8bit,
        faiss.METRIC_INNER_PRODUCT,
    )
    _filled(index, partition, vectors, partition.metric.moved, partition.sample, advance)
    return _asked_through(partition.metric.queries, index)


def _pq(partition: Partition, vectors: Half, seed: int, advance: Advance) -> faiss.Index:
    width, lists = vectors.shape[1], len(partition.centroids)
    coarse = faiss.IndexIVFPQ(_quantizer(partition.centroids), width, lists, width // 2, 4, faiss.METRIC_INNER_PRODUCT)
    coarse.by_residual = False
    coarse.pq.cp.seed = seed
    _filled(coarse, partition, vectors, partition.metric.moved, partition.sample, advance)
    return _asked_through(partition.metric.queries, faiss.IndexIVFPQFastScan(coarse))


def _rabitq(partition: Partition, vectors: Half, seed: int, advance: Advance) -> faiss.Index:
    width, metric = vectors.shape[1], partition.metric
    numbers = np.random.default_rng(seed).standard_normal((width, width))
    rotation = np.linalg.qr(numbers)[0].astype(np.float32)

    def turned(chunk: Floats) -> Floats:
        return np.ascontiguousarray(chunk @ rotation.T)

    lists = faiss.IndexIVFRaBitQ(
        _quantizer(turned(partition.centroids)), width, len(partition.centroids), faiss.METRIC_INNER_PRODUCT
    )
    _filled(lists, partition, vectors, lambda chunk: turned(metric.moved(chunk)), turned(partition.sample), advance)
    return _asked_through(rotation @ metric.queries, faiss.IndexIVFRaBitQFastScan(lists))


def _asked_through(matrix: Floats, index: faiss.Index) -> faiss.Index:
    """The index, asked with `matrix` float32 [d, d] times the query."""
    turn = faiss.LinearTransform(matrix.shape[1], matrix.shape[0], False)
    faiss.copy_array_to_vector(np.ascontiguousarray(matrix).ravel(), turn.A)
    turn.is_trained = True
    return faiss.IndexPreTransform(turn, index)


def _quantizer(centroids: Floats) -> faiss.Index:
    quantizer = faiss.IndexFlatIP(centroids.shape[1])
    quantizer.add(centroids)
    return quantizer


def _filled(
    index: faiss.IndexIVF,
    partition: Partition,
    vectors: Half,
    prepared: Callable[[Floats], Floats],
    sample: Floats,
    advance: Advance,
) -> faiss.IndexIVF:
    """The index with all vectors in the lists that they are assigned to; its codes trained on `sample`."""
    index.train(sample)
    for start, chunk in chunks(vectors):
        rows = np.arange(start, start + len(chunk), dtype=np.int64)
        nearest = partition.assigned[rows].astype(np.int64)
        part = np.ascontiguousarray(prepared(chunk))
        index.add_core(len(rows), faiss.swig_ptr(part), faiss.swig_ptr(rows), faiss.swig_ptr(nearest))
        advance(len(rows))
    return index


LISTS = {
    "ivf_sq8": Lists("sq8", 8, 0, (0.0, 1.25), Pace(1500.0, 0.185), _sq8),
    "ivf_pq": Lists("pq4fs", 2, 1, (4.0, 8.0, 16.0), Pace(2500.0, 0.03), _pq),
    "ivf_rabitq": Lists("rabitqfs", 1, 9, (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0), Pace(3500.0, 0.04), _rabitq),
}
"""By the name that settings have for it."""
