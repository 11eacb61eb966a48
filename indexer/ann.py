"""The FAISS index (inner product), and the cheapest operating point at which it holds the recall floor.

Flat, which is exact, up to `flat_up_to` items; inverted lists over 8-bit codes beyond, of vectors that are made equally
long where they are not (see contract.inner_product). n items, d numbers each.
Memory beside the index itself: the training sample (at most 64 vectors a list, float32) and one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from indexer.contract.features import Floats
from indexer.contract.inner_product import as_wide, widened
from indexer.contract.manifest import IndexSpec
from indexer.errors import GateFailed
from indexer.progress import Advance
from indexer.settings import AnnSettings
from indexer.vector_store import Vectors

CANDIDATES = 500
_TRAINED_PER_LIST = 64
_TRAINED_AT_LEAST = 39
"""Vectors a list; FAISS warns below."""
_CHUNK_ROWS = 65_536
_ADD_TICKS = 4096
_SAME_SCORE = 1e-6
_EQUAL = 0.01
"""Vectors whose lengths differ by less are taken for equally long."""


def build_index(
    vectors: Vectors,
    first_rows: npt.NDArray[np.int64],
    settings: AnnSettings,
    *,
    threads: int,
    seed: int,
    advance: Advance,
) -> faiss.Index:
    """An index of float16 [n, d] in row order. `first_rows` int64 [t]: a row of each distinct text, to train on.

    Raises GateFailed when a vector is not finite: FAISS would take it.
    """
    faiss.omp_set_num_threads(threads)
    lists = round(4 * math.sqrt(len(first_rows)))
    trainable = len(first_rows) // _TRAINED_AT_LEAST
    if len(vectors) <= settings.flat_up_to or min(lists, trainable) < 2:
        wide: Callable[[Floats], Floats] = _as_they_are
        index: faiss.Index = faiss.IndexFlatIP(vectors.shape[1])
    else:
        wide = _wide(vectors)
        index = _trained(vectors, first_rows, min(lists, trainable), seed, wide)
    for chunk in _chunks(vectors):
        for start in range(0, len(chunk), _ADD_TICKS):
            part = chunk[start : start + _ADD_TICKS]
            index.add(wide(part))
            advance(len(part))
    return index


def tune(index: faiss.Index, vectors: Vectors, queries: Floats, settings: AnnSettings) -> IndexSpec:
    """The smallest nprobe with recall@500 >= the floor on `queries` float32 [q, d], and the recall measured there.

    When no nprobe reaches the floor the best is given; a gate refuses it.
    """
    if not isinstance(index, faiss.IndexIVF):
        return IndexSpec(kind="flat", nprobe=0, recall_at_500=1.0)
    k = min(CANDIDATES, len(vectors))
    wanted = _kth_scores(vectors, queries, k)
    measured: dict[int, float] = {}

    def recall(nprobe: int) -> float:
        if nprobe not in measured:
            measured[nprobe] = _recall(index, vectors, queries, wanted, k, nprobe)
        return measured[nprobe]

    high = 1
    while recall(high) < settings.recall_floor and high < index.nlist:
        high = min(2 * high, index.nlist)
    low = high // 2
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if recall(middle) >= settings.recall_floor else (middle, high)
    width = index.d if index.d != vectors.shape[1] else 0
    return IndexSpec(kind=f"ivf{index.nlist},sq8", nprobe=high, width=width, recall_at_500=round(recall(high), 6))


def search(index: faiss.Index, queries: Floats, k: int, nprobe: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Scores float32 [q, k] and rows int64 [q, k], best first; a row of -1 stands for nothing found."""
    if not np.isfinite(queries).all():
        raise ValueError("a query vector is not finite")
    parameters = faiss.SearchParametersIVF() if nprobe else None
    if parameters is not None:
        parameters.nprobe = nprobe
    scores, rows = index.search(as_wide(queries, index.d), min(k, index.ntotal), params=parameters)
    return scores, rows


def write_index(index: faiss.Index, path: Path) -> None:
    """Writes the index as FAISS reads it. Raises OSError."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:  # FAISS names its own source file first, the reason last
        raise OSError(f"{path}: cannot be written: {str(error).rsplit(': ', 1)[-1]}") from error


def _as_they_are(chunk: Floats) -> Floats:
    return chunk


def _wide(vectors: Vectors) -> Callable[[Floats], Floats]:
    """What makes the vectors float32 [c, d] equally long; nothing, where they are."""
    lengths = np.concatenate([np.linalg.norm(chunk, axis=1) for chunk in _chunks(vectors)])
    longest = float(lengths.max())
    if lengths.min() >= (1 - _EQUAL) * longest:
        return _as_they_are
    return lambda chunk: widened(chunk, longest)


def _trained(
    vectors: Vectors,
    first_rows: npt.NDArray[np.int64],
    lists: int,
    seed: int,
    wide: Callable[[Floats], Floats],
) -> faiss.IndexIVF:
    dimension = wide(vectors[:1].astype(np.float32)).shape[1]
    quantizer = faiss.IndexFlatIP(dimension)
    index = faiss.IndexIVFScalarQuantizer(
        quantizer, dimension, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.seed = seed
    index.cp.niter = 10
    index.cp.spherical = True
    index.cp.max_points_per_centroid = _TRAINED_PER_LIST
    index.cp.min_points_per_centroid = 1
    wanted = min(len(first_rows), lists * _TRAINED_PER_LIST)
    sample = np.sort(np.random.default_rng(seed).choice(first_rows, wanted, replace=False))
    index.train(wide(_finite(vectors[sample].astype(np.float32))))
    return index


def _chunks(vectors: Vectors) -> Iterator[Floats]:
    for start in range(0, len(vectors), _CHUNK_ROWS):
        yield _finite(vectors[start : start + _CHUNK_ROWS].astype(np.float32))


def _finite(chunk: Floats) -> Floats:
    if not np.isfinite(chunk).all():
        raise GateFailed("no_nan: an item vector is NaN or infinite; remove the vector store and build again")
    return chunk


def _kth_scores(vectors: Vectors, queries: Floats, k: int) -> Floats:
    """float32 [q]: the k-th best exact score of each query."""
    best = np.full((len(queries), 0), -np.inf, np.float32)
    for chunk in _chunks(vectors):
        flat = faiss.IndexFlatIP(chunk.shape[1])
        flat.add(chunk)
        scores, _ = flat.search(queries, min(k, len(chunk)))
        best = np.sort(np.concatenate([best, scores], axis=1), axis=1)[:, -k:]
    return best[:, 0]


def _recall(index: faiss.IndexIVF, vectors: Vectors, queries: Floats, wanted: Floats, k: int, nprobe: int) -> float:
    """Share of the k found whose exact score is at least the k-th exact one: items of one text are all as good."""
    _, rows = search(index, queries, k, nprobe)
    hits = 0
    for query, found, least in zip(queries, rows, wanted, strict=True):
        exact = vectors[found[found >= 0]].astype(np.float32) @ query
        hits += int(np.count_nonzero(exact >= least - _SAME_SCORE))
    return hits / (k * len(queries))
