"""An answer: what scoring gives for a question, and its form in the cache (at most 3.3 KB for 500 candidates)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.features import Floats
from indexer.contract.items import Rows

_HEAD = struct.Struct("<BHH")
FORMAT = 1
"""Of a packed answer; part of the content key, so that processes of two versions may share a cache."""
_HALF_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True, slots=True)
class Answer:
    """Candidates in order of retrieval, and the base ranking of the first of them.

    rows    int32 [C], C <= 500           scores   float32 [C], not increasing
    ranked  uint16 [D], D <= C: positions in `rows`, best first; empty when nothing was reranked
    rank_scores  float32 [D], not increasing
    Scores pass through float16, so that a computed answer equals its cached copy.
    """

    rows: Rows
    scores: Floats
    ranked: npt.NDArray[np.uint16]
    rank_scores: Floats

    @classmethod
    def of(cls, rows: Rows, scores: Floats, ranked: npt.NDArray[np.uint16], rank_scores: Floats) -> Answer:
        """An answer with its scores rounded to float16."""
        return cls(rows, _rounded(scores), ranked, _rounded(rank_scores))

    def ordered(self) -> tuple[Rows, Floats, Rows, Floats]:
        """Rows and scores of the ranking, then rows and scores of the reserve, each best first."""
        reserve = np.ones(len(self.rows), np.bool_)
        reserve[self.ranked] = False
        return self.rows[self.ranked], self.rank_scores, self.rows[reserve], self.scores[reserve]


def pack(answer: Answer) -> bytes:
    """The answer as bytes: counts, then the four arrays."""
    return b"".join(
        (
            _HEAD.pack(FORMAT, len(answer.rows), len(answer.ranked)),
            answer.rows.astype("<i4").tobytes(),
            answer.scores.astype("<f2").tobytes(),
            answer.ranked.astype("<u2").tobytes(),
            answer.rank_scores.astype("<f2").tobytes(),
        )
    )


def unpack(data: bytes, items: int) -> Answer:
    """The answer that `pack` wrote. Raises ValueError on anything else, or on a row outside 0..items-1."""
    if len(data) < _HEAD.size:
        raise ValueError("answer: too short")
    form, count, depth = _HEAD.unpack_from(data)
    if form != FORMAT or depth > count or len(data) != _HEAD.size + 6 * count + 4 * depth:
        raise ValueError("answer: not of this format")
    at = _HEAD.size
    rows = np.frombuffer(data, "<i4", count, at)
    scores = np.frombuffer(data, "<f2", count, at + 4 * count).astype(np.float32)
    ranked = np.frombuffer(data, "<u2", depth, at + 6 * count)
    rank_scores = np.frombuffer(data, "<f2", depth, at + 6 * count + 2 * depth).astype(np.float32)
    if count and (rows.min() < 0 or rows.max() >= items):
        raise ValueError("answer: a row outside the snapshot")
    if depth and (int(ranked.max()) >= count or len(np.unique(ranked)) != depth):
        raise ValueError("answer: a rank outside its candidates")
    if not (np.isfinite(scores).all() and np.isfinite(rank_scores).all()):
        raise ValueError("answer: a score is not finite")
    if (np.diff(scores) > 0).any() or (np.diff(rank_scores) > 0).any():
        raise ValueError("answer: scores rise")
    return Answer(rows.astype(np.int32), scores, ranked.astype(np.uint16), rank_scores)


def _rounded(scores: Floats) -> Floats:
    return np.clip(scores, -_HALF_MAX, _HALF_MAX).astype(np.float16).astype(np.float32)
