"""Candidates by co-occurrence: the neighbours of a context's items, weighted by recency."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from indexer.contract.items import Rows
from indexer.contract.lists import Lists, RowLists

Floats = npt.NDArray[np.float32]
NOBODY = -1
"""Fills a list of neighbours that has fewer than K."""


class NeighbourSpec(BaseModel):
    """How a context becomes neighbours: its `last` items weigh decay**position; the best `limit` are candidates."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    last: int = Field(default=20, ge=1, le=100)
    decay: float = Field(default=0.9, gt=0, le=1)
    limit: int = Field(default=200, ge=1, le=1000)


def neighbour_lists(
    near: npt.NDArray[np.int32], similarities: npt.NDArray[np.float16], count: int
) -> tuple[RowLists, RowLists]:
    """The lists of `count` items in neighbours.npy and similarities.npy, which may be memory-mapped.

    neighbours.npy int32 [n + 1 + E]: where the list of each item begins and the last one ends, then the lists, best
    first. similarities.npy float16 [E]. Raises ValueError when the numbers of places differ; their values are not
    looked at.
    """
    starts = near[: count + 1]
    if len(starts) != count + 1 or len(near) - len(starts) != len(similarities):
        raise ValueError(
            f"neighbours and similarities: int32 [{len(near)}] and float16 [{len(similarities)}], "
            f"expected [{count} + 1 + E] and [E]"
        )
    return Lists(starts, near[count + 1 :], NOBODY), Lists(starts, similarities, 0)


def context_neighbours(
    neighbours: RowLists, similarities: RowLists, context: Rows, spec: NeighbourSpec
) -> tuple[Rows, Floats]:
    """`neighbour_candidates` of the newest items of a context: int32 [k], newest first.

    Where nothing of the session is known, the items of the history stand in for it.
    """
    newest = context[: spec.last]
    weights = (spec.decay ** np.arange(len(newest))).astype(np.float32)
    return neighbour_candidates(neighbours, similarities, newest, weights, spec.limit)


def neighbour_candidates(
    neighbours: RowLists,
    similarities: RowLists,
    context: Rows,
    weights: Floats,
    limit: int,
) -> tuple[Rows, Floats]:
    """At most `limit` rows, best first, int32 [c], with their scores float32 [c], all above 0.

    `neighbours` int32 [n, K] and `similarities` float16 [n, K] may be memory-mapped: only the rows of the context are
    read. score(j) = sum over the context's items i of weight_i * similarity(i, j). `context` int32 [k], `weights`
    float32 [k]. Items of the context itself may be among the candidates, when they are neighbours of another one.
    """
    ids = neighbours[context]
    scores = similarities[context].astype(np.float32) * weights[:, None]
    found = (ids != NOBODY) & (scores > 0)
    rows, place = np.unique(ids[found], return_inverse=True)
    total = np.bincount(place, weights=scores[found], minlength=len(rows)).astype(np.float32)
    best = top(total, limit)
    return rows[best].astype(np.int32), total[best]


def top(scores: Floats, limit: int) -> npt.NDArray[np.intp]:
    """Places of the `limit` highest scores, highest first, equal ones by place."""
    if 0 < limit < len(scores):
        bound = np.partition(scores, len(scores) - limit)[len(scores) - limit]
        kept = np.flatnonzero(scores >= bound)
    else:
        kept = np.arange(len(scores))
    return kept[np.argsort(-scores[kept], kind="stable")][:limit]
