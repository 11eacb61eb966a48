"""Whether the service scores as the job does: the same questions, the same snapshot, two codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.contract.towers import Mode
from indexer.contract.visits import Answered
from indexer.learn.retrieval import Asked
from indexer.learn.snapshot_ranker import RankedList, SnapshotRanker

TOLERANCE = 1e-4


def difference(
    asked: Sequence[Asked], answers: Sequence[Answered], ranker: SnapshotRanker, mode: Mode
) -> dict[str, Any]:
    """The differences between served and offline scores of reranked items, over questions answered as RANKED.

    max         the largest one; 0 where nothing was compared
    above       how many items differ by more than TOLERANCE
    items       how many were compared, of `questions`
    same_top    share of the questions whose first ten items are the same, in the same order
    """
    offline = ranker.rank(asked, mode)
    compared: list[npt.NDArray[np.float64]] = []
    same = 0
    for one, answer, mine in zip(asked, answers[: len(asked)], offline, strict=True):
        if answer.rung != "RANKED":
            continue
        rows = np.array(ranker.items.rows(answer.item_ids[: len(answer.scores)]), np.int32)
        same += int(np.array_equal(rows[:10], np.concatenate([mine.rows, mine.reserve])[:10]))
        compared.append(_differences(rows, answer.scores, _as_kept(mine, one, mode)))
    every = np.concatenate([np.empty(0), *compared])
    return {
        "questions": len(compared),
        "items": len(every),
        "max": round(float(every.max(initial=0.0)), 7),
        "above": int(np.count_nonzero(every > TOLERANCE)),
        "same_top": round(same / max(1, len(compared)), 4),
    }


def _as_kept(mine: RankedList, asked: Asked, mode: Mode) -> RankedList:
    """What all share is kept by the service with scores as float16."""
    if len(asked.history) or mode == "personal":
        return mine
    return RankedList(mine.rows, mine.scores.astype(np.float16).astype(np.float32), mine.reserve)


def _differences(
    rows: npt.NDArray[np.int32], scores: npt.NDArray[np.float32], mine: RankedList
) -> npt.NDArray[np.float64]:
    order = np.argsort(mine.rows)
    place = np.minimum(np.searchsorted(mine.rows, rows, sorter=order), max(0, len(mine.rows) - 1))
    if not len(mine.rows):
        return np.empty(0)
    at = order[place]
    both = mine.rows[at] == rows
    return np.asarray(np.abs(scores[both].astype(np.float64) - mine.scores[at[both]]), np.float64)
