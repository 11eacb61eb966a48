"""Exact search, which recall is measured against. Memory: one chunk of vectors and of scores."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import faiss
import numpy as np

from indexer.ann.partition import chunks, require_finite
from indexer.contract.ann_index import AnnIndex, Found, Selection
from indexer.contract.features import Floats
from indexer.contract.items import Mask
from indexer.contract.manifest import SearchPoint
from indexer.contract.vector_file import Half

CANDIDATES = 500
_SAME_SCORE = 1e-6
_ROWS = 65_536


@dataclass(frozen=True, slots=True)
class Truth:
    """queries float32 [q, d]; `least` float32 [q]: the k-th best exact score of each among what `selection` leaves
    (None: all items)."""

    queries: Floats
    least: Floats
    k: int
    selection: Selection | None = None


def exact_truth(
    vectors: Half, queries: Floats, *, mask: Mask | None = None, selection: Selection | None = None
) -> Truth:
    """Of `queries` among float16 [n, d], all or what `mask` (bool [n]) leaves, at most CANDIDATES deep."""
    k = min(CANDIDATES, len(vectors) if mask is None else int(np.count_nonzero(mask)))
    best = np.full((len(queries), 0), -np.inf, np.float32)
    for chunk in _parts(vectors, mask):
        flat = faiss.IndexFlatIP(chunk.shape[1])
        flat.add(chunk)
        scores, _ = flat.search(queries, min(k, len(chunk)))
        best = np.sort(np.concatenate([best, scores], axis=1), axis=1)[:, -k:]
    return Truth(queries, best[:, 0], k, selection)


@dataclass(frozen=True, slots=True)
class Recall:
    """The mean over queries, and the mean less one standard error: what other queries have, five times in six."""

    mean: float
    low: float


def recall(index: AnnIndex, vectors: Half, truth: Truth, point: SearchPoint) -> Recall:
    """Share of the k wanted that are found at this point."""
    return recall_of(index.search(truth.queries, truth.k, truth.selection, point), vectors, truth)


def recall_of(found: Found, vectors: Half, truth: Truth) -> Recall:
    """Share of the k found whose exact score is at least the k-th exact one: items of one text are all as good."""
    hits = np.zeros(len(truth.queries))
    for at, (query, rows, least) in enumerate(zip(truth.queries, found[1], truth.least, strict=True)):
        exact = vectors[rows[rows >= 0]].astype(np.float32) @ query
        hits[at] = np.count_nonzero(exact >= least - _SAME_SCORE) / truth.k
    mean = float(hits.mean())
    return Recall(round(mean, 6), round(mean - float(hits.std()) / math.sqrt(len(hits)), 6))


def _parts(vectors: Half, mask: Mask | None) -> Iterator[Floats]:
    if mask is None:
        for _, chunk in chunks(vectors):
            yield chunk
        return
    rows = np.flatnonzero(mask)
    for start in range(0, len(rows), _ROWS):
        yield require_finite(vectors[rows[start : start + _ROWS]].astype(np.float32))
