"""What every library is asked: exact truth, recall, tuning to the floor and timing. Needs numpy alone.

`vectors` float16 [n, d], `queries` float32 [q, d], metric: inner product, K nearest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

K = 500
BATCH = 32
SAME_SCORE = 1e-6
"""A hit scores at least the K-th exact score less this: items of one text are all as good."""

Floats = npt.NDArray[np.float32]
Found = npt.NDArray[np.integer[Any]]
_CHUNK = 65_536


class Searcher(Protocol):
    """An index that was built. `effort` is what its guide tunes recall by: nprobe, ef, leaves."""

    bytes: int

    def single(self, query: Floats, effort: int) -> Found:
        """Rows [at most K] for one query float32 [d], by one thread; -1 or nothing for what was not found."""

    def batch(self, queries: Floats, effort: int) -> Found:
        """Rows [q, at most K] for queries float32 [q, d] at once, by the threads it was built for."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is searched. `tune`, `ask`, `typical` float32 [q, d] are other queries each, the last for an index to learn
    from; `*_least` float32 [q] their K-th score."""

    vectors: npt.NDArray[np.float16]
    tune: Floats
    tune_least: Floats
    ask: Floats
    ask_least: Floats
    typical: Floats

    @classmethod
    def load(cls, folder: Path) -> Work:
        """Of the files that `save` wrote; the vectors memory-mapped."""
        vectors = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)
        rest = np.load(folder / "queries.npz", allow_pickle=False)
        return cls(vectors, *(rest[name] for name in ("tune", "tune_least", "ask", "ask_least", "typical")))

    def save(self, folder: Path) -> None:
        """Into vectors.npy and queries.npz."""
        np.save(folder / "vectors.npy", self.vectors)
        np.savez(
            folder / "queries.npz",
            tune=self.tune,
            tune_least=self.tune_least,
            ask=self.ask,
            ask_least=self.ask_least,
            typical=self.typical,
        )

    def chunks(self) -> Iterator[Floats]:
        """The vectors as float32 [c, d], in order."""
        for start in range(0, len(self.vectors), _CHUNK):
            yield self.vectors[start : start + _CHUNK].astype(np.float32)


def least_scores(vectors: npt.NDArray[np.float16], queries: Floats) -> Floats:
    """float32 [q]: the K-th best exact score of each query."""
    k = min(K, len(vectors))
    best = np.empty((len(queries), 0), np.float32)
    for start in range(0, len(vectors), _CHUNK):
        scores = queries @ vectors[start : start + _CHUNK].astype(np.float32).T
        best = np.concatenate([best, scores], axis=1)
        best = -np.partition(-best, k - 1, axis=1)[:, :k] if best.shape[1] > k else best
    return np.asarray(best.min(axis=1), np.float32)


def recall(work: Work, queries: Floats, least: Floats, found: list[Found]) -> float:
    """Share of the K that score as the K exact best do."""
    k, hits = min(K, len(work.vectors)), 0
    for query, rows, wanted in zip(queries, found, least, strict=True):
        known = rows[rows >= 0]
        assert len(known) <= k, f"{len(known)} rows for a query, at most {k} were asked for"
        assert len(np.unique(known)) == len(known), "a row stands twice among those found"
        hits += int(np.count_nonzero(work.vectors[known].astype(np.float32) @ query >= wanted - SAME_SCORE))
    return hits / (k * len(queries))


def tuned(recall_at: Callable[[int], float], floor: float, least: int, most: int) -> tuple[int, float]:
    """The smallest effort from `least` to `most` at which the floor is held, to a sixteenth, and the recall there.

    `most` and what it gives when none holds it. Recall is taken to grow with effort.
    """
    measured: dict[int, float] = {}

    def at(effort: int) -> float:
        if effort not in measured:
            measured[effort] = recall_at(effort)
        return measured[effort]

    low, high = least - 1, least
    while at(high) < floor and high < most:
        low, high = high, min(2 * high, most)
    while at(high) >= floor and high - low > max(1, high // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) >= floor else (middle, high)
    return high, at(high)


def timed(searcher: Searcher, queries: Floats, effort: int) -> dict[str, float]:
    """p50 and p99 of single queries, milliseconds, and queries a second in batches."""
    took = np.empty(len(queries))
    for at, query in enumerate(queries):
        begun = time.perf_counter()
        searcher.single(query, effort)
        took[at] = time.perf_counter() - begun
    begun = time.perf_counter()
    for start in range(0, len(queries), BATCH):
        searcher.batch(queries[start : start + BATCH], effort)
    p50, p99 = np.percentile(took * 1e3, [50, 99])
    return {"p50_ms": p50, "p99_ms": p99, "batched_qps": len(queries) / (time.perf_counter() - begun)}


def asked(searcher: Searcher, queries: Floats, effort: int) -> list[Found]:
    """What is found for each query, one at a time."""
    return [searcher.single(query, effort) for query in queries]
