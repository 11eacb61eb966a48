"""An answer: what scoring gives for a question, and its form in the cache (at most 4 KiB for 500 candidates)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fallback.ladder import Rung
from indexer.contract.blend import Blend
from indexer.contract.features import Floats
from indexer.contract.sources import Shared

FORMAT = 2
"""Of a packed answer; part of the content key, so that processes of two versions may share a cache."""
_HEAD = struct.Struct("<BBHHH")
_SEARCHED = 1
_HALF_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class Answer:
    """Candidates in the order of the blend, the session vector, and the ranking of the first of them.

    shared       C candidates, C <= 500 where all share them, and the vector float32 [d]: both through float16
    ranked       uint16 [D], D <= C: places among the candidates, best first; empty when nothing was reranked
    rank_scores  float32 [D], not increasing
    searched     whether vector retrieval took part
    """

    shared: Shared
    ranked: npt.NDArray[np.uint16]
    rank_scores: Floats
    searched: bool = True

    @property
    def rung(self) -> Rung:
        """The rung that it stands on while it is fresh; where there was nothing to rank, nothing lowers it."""
        if len(self.shared.candidates) and not len(self.ranked):
            return Rung.RETRIEVED
        return Rung.RANKED if self.searched else Rung.BLENDED

    def order(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Places among the candidates: those of the ranking, then those of the reserve, each best first."""
        reserve = np.ones(len(self.shared.candidates), np.bool_)
        reserve[self.ranked] = False
        return self.ranked.astype(np.intp), np.flatnonzero(reserve)


def through_half(scores: Floats) -> Floats:
    """Scores as a cached answer keeps them: float16, finite."""
    return np.clip(scores, -_HALF_MAX, _HALF_MAX).astype(np.float16).astype(np.float32)


def pack(answer: Answer) -> bytes:
    """The answer as bytes: counts, then the arrays; of each candidate 4 bits say its sources."""
    found, vector = answer.shared.candidates, answer.shared.vector
    return b"".join(
        (
            _HEAD.pack(FORMAT, _SEARCHED * answer.searched, len(found), len(answer.ranked), len(vector)),
            found.rows.astype("<i4").tobytes(),
            found.scores.astype("<f2").tobytes(),
            answer.ranked.astype("<u2").tobytes(),
            answer.rank_scores.astype("<f2").tobytes(),
            vector.astype("<f2").tobytes(),
            _nibbles(found.sources),
        )
    )


def unpack(data: bytes, items: int, dimension: int) -> Answer:
    """The answer that `pack` wrote. Raises ValueError on anything else, on a row outside 0..items-1, or on a vector
    of another dimension."""
    if len(data) < _HEAD.size:
        raise ValueError("answer: too short")
    form, flags, count, depth, width = _HEAD.unpack_from(data)
    size = _HEAD.size + 6 * count + 4 * depth + 2 * width + (count + 1) // 2
    if form != FORMAT or flags & ~_SEARCHED or depth > count or len(data) != size:
        raise ValueError("answer: not of this format")
    if width != dimension:
        raise ValueError("answer: a vector of another dimension")
    at = _HEAD.size
    rows = np.frombuffer(data, "<i4", count, at)
    scores = np.frombuffer(data, "<f2", count, at + 4 * count).astype(np.float32)
    ranked = np.frombuffer(data, "<u2", depth, at + 6 * count)
    rank_scores = np.frombuffer(data, "<f2", depth, at + 6 * count + 2 * depth).astype(np.float32)
    vector = np.frombuffer(data, "<f2", width, at + 6 * count + 4 * depth).astype(np.float32)
    packed = np.frombuffer(data, np.uint8, (count + 1) // 2, at + 6 * count + 4 * depth + 2 * width)
    if count and (rows.min() < 0 or rows.max() >= items):
        raise ValueError("answer: a row outside the snapshot")
    if depth and (int(ranked.max()) >= count or len(set(ranked.tolist())) != depth):
        raise ValueError("answer: a rank outside its candidates")
    if not (np.isfinite(scores).all() and np.isfinite(rank_scores).all() and np.isfinite(vector).all()):
        raise ValueError("answer: a number is not finite")
    if (scores[1:] > scores[:-1]).any() or (rank_scores[1:] > rank_scores[:-1]).any():
        raise ValueError("answer: scores rise")
    sources = np.empty(2 * len(packed), np.uint8)
    sources[::2], sources[1::2] = packed & 15, packed >> 4
    sources = sources[:count]
    if not sources.all():
        raise ValueError("answer: a candidate of no source")
    shared = Shared(Blend(rows.astype(np.int32), scores, sources), vector)
    return Answer(shared, ranked.astype(np.uint16), rank_scores, bool(flags & _SEARCHED))


def _nibbles(sources: npt.NDArray[np.uint8]) -> bytes:
    even = np.zeros((len(sources) + 1) // 2 * 2, np.uint8)
    even[: len(sources)] = sources
    return (even[::2] | even[1::2] << 4).tobytes()
