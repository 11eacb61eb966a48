"""Questions with their candidates as arrays: what rankers are trained on and measured by.

Q questions, C candidates (padded), F features, N attended events. Candidates stand in the order of the blend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from indexer.contract.blend import Blend, BlendSpec
from indexer.contract.candidates import FEATURES, INPUTS, Floats, Shelf, Shopper, attended, ranker_tensors
from indexer.contract.items import Mask, Rows
from indexer.learn.evaluate import PerQuestion, ndcg
from indexer.learn.retrieval import Asked, Found

Scores = npt.NDArray[np.float32]
"""float32 [Q, C], higher is better; what stands in the padding is to be ignored."""
_BATCH = 256


@dataclass(frozen=True, slots=True)
class Lists:
    """features float32 [Q, C, F]; rows int32 [Q, C], present and positive bool [Q, C]; targets int64 [Q], how many
    there are, found or not; users int32 [Q]; candidate_vectors float16 [Q, C, d]; context_vectors float16 [Q, N, d],
    context_types int64 and context_mask bool [Q, N], context_rows int32 [Q, N] (-1: none), newest first.
    """

    features: Floats
    rows: Rows
    present: Mask
    positive: Mask
    targets: npt.NDArray[np.int64]
    users: Rows
    candidate_vectors: npt.NDArray[np.float16]
    context_vectors: npt.NDArray[np.float16]
    context_types: npt.NDArray[np.int64]
    context_mask: Mask
    context_rows: Rows

    def __len__(self) -> int:
        return len(self.features)

    def take(self, which: npt.NDArray[np.integer] | Mask) -> Lists:
        """Some of the questions, by number or by mask [Q]."""
        return Lists(*(getattr(self, field.name)[which] for field in fields(self)))

    def answerable(self) -> Mask:
        """bool [Q]: a target is among the candidates; only these teach anything."""
        return np.asarray(self.positive.any(axis=1), np.bool_)

    def ndcg(self, scores: Scores, k: int = 10) -> PerQuestion:
        """NDCG@k of each question, float64 [Q], over all targets; equal scores stand in the order of the blend."""
        order = np.argsort(-np.where(self.present, scores, -np.inf), axis=1, kind="stable")
        hit = np.take_along_axis(self.positive, order, axis=1)
        return ndcg(hit, [np.empty(count, np.int32) for count in self.targets], k)

    def blend_order(self) -> Scores:
        """Scores that keep the order of the blend."""
        return np.asarray(-np.broadcast_to(np.arange(self.rows.shape[1]), self.rows.shape), np.float32)


def make_lists(
    asked: Sequence[Asked], found: Sequence[Found], shelf: Shelf, spec: BlendSpec, *, depth: int = 50, places: int = 50
) -> Lists:
    """The first `depth` of each blend with what the ranker is given; at most `places` attended events."""
    count, dimension = len(asked), shelf.vectors.shape[1]
    out = Lists(
        np.zeros((count, depth, len(FEATURES)), np.float32),
        np.full((count, depth), -1, np.int32),
        np.zeros((count, depth), np.bool_),
        np.zeros((count, depth), np.bool_),
        np.array([len(each.question.targets) for each in asked], np.int64),
        np.array([each.question.user for each in asked], np.int32),
        np.zeros((count, depth, dimension), np.float16),
        np.zeros((count, places, dimension), np.float16),
        np.zeros((count, places), np.int64),
        np.zeros((count, places), np.bool_),
        np.full((count, places), -1, np.int32),
    )
    for first in range(0, count, _BATCH):
        part = range(first, min(first + _BATCH, count))
        blends = [_first(found[at].blend(spec), depth) for at in part]
        shoppers = [_shopper(asked[at], found[at]) for at in part]
        inputs = ranker_tensors(shelf, shoppers, blends, places)
        for name in INPUTS:
            getattr(out, name)[first : part.stop, : inputs[name].shape[1]] = inputs[name]
        for at, one, shopper in zip(part, blends, shoppers, strict=True):
            events = attended(shopper, places).rows
            out.context_rows[at, : len(events)] = events
            out.rows[at, : len(one)] = one.rows
            out.present[at, : len(one)] = True
            out.positive[at, : len(one)] = np.isin(one.rows, asked[at].question.targets)
    return out


def joined(parts: Sequence[Lists]) -> Lists:
    """The questions of all parts, which must be of the same depth."""
    return Lists(*(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Lists)))


def _first(whole: Blend, depth: int) -> Blend:
    return Blend(whole.rows[:depth], whole.scores[:depth], whole.sources[:depth])


def _shopper(asked: Asked, found: Found) -> Shopper:
    return Shopper(asked.question.context, asked.history, asked.question.day, found.vector)
