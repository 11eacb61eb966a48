"""Inverted lists: where their centroids are, and which list each item belongs to. Found once for all kinds.

Vectors of unlike lengths are widened first (see contract.inner_product). Memory: the training sample (at most 64
vectors a list, float32), one chunk, 4 bytes an item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import faiss
import numpy as np
import numpy.typing as npt

from indexer.contract.features import Floats
from indexer.contract.inner_product import widened
from indexer.contract.vector_file import Half
from indexer.errors import GateFailed
from indexer.progress import Advance

_TRAINED_PER_LIST = 64
_TRAINED_AT_LEAST = 39
"""Vectors a list; FAISS warns below."""
_ROUNDS = 10
_CHUNK_ROWS = 65_536
_TICKS = 4096
_EQUAL = 0.01
"""Vectors whose lengths differ by less are taken for equally long."""

Widen = Callable[[Floats], Floats]
MakeFlat = Callable[[int], faiss.Index]
"""An empty exact index by inner product of so many numbers: on a device, where there is one."""


@dataclass(frozen=True, slots=True)
class Partition:
    """centroids float32 [lists, width]; assigned int32 [n]; sample float32 [t, width] to train codes on; `widen` makes
    what is indexed of vectors float32 [c, d]."""

    centroids: Floats
    assigned: npt.NDArray[np.int32]
    sample: Floats
    widen: Widen

    @property
    def width(self) -> int:
        """Numbers of an indexed vector."""
        return int(self.centroids.shape[1])


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
    make_flat: MakeFlat = faiss.IndexFlatIP,
) -> Partition:
    """Of float16 [n, d] into `lists`, trained on rows of `first_rows` int64 [t], one of each distinct text.

    Raises GateFailed when a vector is not finite: FAISS would take it.
    """
    widen = widening(vectors)
    wanted = min(len(first_rows), lists * _TRAINED_PER_LIST)
    rows = np.sort(np.random.default_rng(seed).choice(first_rows, wanted, replace=False))
    sample = widen(require_finite(vectors[rows].astype(np.float32)))
    flat = make_flat(sample.shape[1])
    clustering = faiss.Clustering(sample.shape[1], lists)
    clustering.seed, clustering.niter, clustering.spherical = seed, _ROUNDS, True
    clustering.max_points_per_centroid, clustering.min_points_per_centroid = _TRAINED_PER_LIST, 1
    clustering.train(sample, flat)
    centroids = faiss.vector_to_array(clustering.centroids).reshape(lists, -1)
    flat.reset()
    flat.add(centroids)
    assigned = np.empty(len(vectors), np.int32)
    for start, chunk in chunks(vectors):
        for at in range(0, len(chunk), _TICKS):
            _, nearest = flat.search(widen(chunk[at : at + _TICKS]), 1)
            assigned[start + at : start + at + len(nearest)] = nearest[:, 0]
            advance(len(nearest))
    return Partition(centroids, assigned, sample, widen)


def widening(vectors: Half) -> Widen:
    """What makes the vectors float32 [c, d] equally long; nothing, where they are."""
    lengths = np.concatenate([np.linalg.norm(chunk, axis=1) for _, chunk in chunks(vectors)])
    longest = float(lengths.max())
    if lengths.min() >= (1 - _EQUAL) * longest:
        return _as_they_are
    return lambda chunk: widened(chunk, longest)


def chunks(vectors: Half) -> Iterator[tuple[int, Floats]]:
    """The vectors as float32 [c, d], each chunk with the row that it begins at. Raises GateFailed as `partition`."""
    for start in range(0, len(vectors), _CHUNK_ROWS):
        yield start, require_finite(vectors[start : start + _CHUNK_ROWS].astype(np.float32))


def require_finite(chunk: Floats) -> Floats:
    """The chunk itself. Raises GateFailed when a number of it is not finite."""
    if not np.isfinite(chunk).all():
        raise GateFailed("no_nan: an item vector is NaN or infinite; remove the vector store and build again")
    return chunk


def _as_they_are(chunk: Floats) -> Floats:
    return chunk
