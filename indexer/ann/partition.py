"""Inverted lists: where their centroids are, and which list each item belongs to. Found once for all kinds.

Lists are of what lies near each other in the metric of the queries (see `metric`); a query looks first into those whose
centroids have the highest inner product with it. Items belong to the nearest centroid and not to that of the highest
inner product: vectors of unlike lengths would all fall to the longest centroids. Memory: the training sample (at most
64 vectors a list, float32), one chunk, 4 bytes an item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import faiss
import numpy as np
import numpy.typing as npt

from indexer.ann.metric import QueryMetric
from indexer.contract.features import Floats
from indexer.contract.vector_file import Half
from indexer.errors import GateFailed
from indexer.progress import Advance

_TRAINED_PER_LIST = 64
_TRAINED_AT_LEAST = 39
"""Vectors a list; FAISS warns below."""
_ROUNDS = 10
_CHUNK_ROWS = 65_536
_TICKS = 4096

MakeFlat = Callable[[int], faiss.Index]
"""An empty exact index by distance of so many numbers: on a device, where there is one."""


@dataclass(frozen=True, slots=True)
class Partition:
    """centroids float32 [lists, d]; assigned int32 [n]; sample float32 [t, d] to train codes on; all in `metric`."""

    centroids: Floats
    assigned: npt.NDArray[np.int32]
    sample: Floats
    metric: QueryMetric


def list_count(items: int, distinct: int) -> int:
    """Lists for so many items of so many distinct texts; below 2 they cannot be trained."""
    return min(int(4 * math.sqrt(items) + 0.5), distinct // _TRAINED_AT_LEAST)


def partition(
    vectors: Half,
    first_rows: npt.NDArray[np.int64],
    lists: int,
    seed: int,
    advance: Advance,
    *,
    metric: QueryMetric,
    make_flat: MakeFlat = faiss.IndexFlatL2,
) -> Partition:
    """Of float16 [n, d] into `lists`, trained on rows of `first_rows` int64 [t], one of each distinct text.

    Raises GateFailed when a vector is not finite: FAISS would take it.
    """
    wanted = min(len(first_rows), lists * _TRAINED_PER_LIST)
    rows = np.sort(np.random.default_rng(seed).choice(first_rows, wanted, replace=False))
    sample = metric.moved(require_finite(vectors[rows].astype(np.float32)))
    flat = make_flat(sample.shape[1])
    clustering = faiss.Clustering(sample.shape[1], lists)
    clustering.seed, clustering.niter = seed, _ROUNDS
    clustering.max_points_per_centroid, clustering.min_points_per_centroid = _TRAINED_PER_LIST, 1
    clustering.train(sample, flat)
    centroids = faiss.vector_to_array(clustering.centroids).reshape(lists, -1)
    flat.reset()
    flat.add(centroids)
    assigned = np.empty(len(vectors), np.int32)
    for start, chunk in chunks(vectors):
        for at in range(0, len(chunk), _TICKS):
            _, nearest = flat.search(metric.moved(chunk[at : at + _TICKS]), 1)
            assigned[start + at : start + at + len(nearest)] = nearest[:, 0]
            advance(len(nearest))
    return Partition(centroids, assigned, sample, metric)


def chunks(vectors: Half) -> Iterator[tuple[int, Floats]]:
    """The vectors as float32 [c, d], each chunk with the row that it begins at. Raises GateFailed as `partition`."""
    for start in range(0, len(vectors), _CHUNK_ROWS):
        yield start, require_finite(vectors[start : start + _CHUNK_ROWS].astype(np.float32))


def require_finite(chunk: Floats) -> Floats:
    """The chunk itself. Raises GateFailed when a number of it is not finite."""
    if not np.isfinite(chunk).all():
        raise GateFailed("no_nan: an item vector is NaN or infinite; remove the vector store and build again")
    return chunk
