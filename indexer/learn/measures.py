"""What a ranking is worth, question by question, and for which part of the targets.

Q questions. A ranking is a list of rows int32, best first; the first DEPTH of it count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from indexer.contract.items import Mask, Rows
from indexer.learn.evaluate import PerQuestion, hits, ndcg, recall, reciprocal_rank
from indexer.learn.retrieval import Asked, padded

DEPTH = 500
NAMES = ("ndcg_at_10", "ndcg_at_50", "recall_at_50", "recall_at_500", "mrr")
Measures = dict[str, PerQuestion]
"""By name, float64 [Q]."""
NOTHING: Rows = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the questions (`which` bool [Q]), with some of their targets, and what their rankings are freed of."""

    which: Mask
    targets: list[Rows]
    hidden: list[Rows]

    def __len__(self) -> int:
        return len(self.targets)


def whole(asked: Sequence[Asked]) -> Part:
    """All questions with all their targets."""
    return Part(np.ones(len(asked), np.bool_), [each.question.targets for each in asked], [NOTHING] * len(asked))


def novel(asked: Sequence[Asked]) -> Part:
    """Targets that the user never bought before; rankings are freed of all that was bought: discovery alone."""
    wanted = [each.question.targets[~np.isin(each.question.targets, each.history.rows)] for each in asked]
    which = np.array([len(rows) > 0 for rows in wanted], np.bool_)
    hidden = [each.history.rows for each, some in zip(asked, which, strict=True) if some]
    return Part(which, [rows for rows in wanted if len(rows)], hidden)


def cold(asked: Sequence[Asked], sold: Mask) -> Part:
    """Targets without any event before the window (`sold` bool [n]: those with one); rankings are left as they are."""
    wanted = [each.question.targets[~sold[each.question.targets]] for each in asked]
    which = np.array([len(rows) > 0 for rows in wanted], np.bool_)
    targets = [rows for rows in wanted if len(rows)]
    return Part(which, targets, [NOTHING] * len(targets))


def measure(part: Part, ranked: Sequence[Rows]) -> Measures:
    """The measures of NAMES for the part's questions; `ranked` [Q] has a list for every question."""
    if not len(part):
        return {name: np.empty(0) for name in NAMES}
    chosen = [rows for rows, some in zip(ranked, part.which, strict=True) if some]
    open_ = [
        rows[~np.isin(rows, hidden)] if len(hidden) else rows
        for rows, hidden in zip(chosen, part.hidden, strict=True)
    ]  # fmt: skip
    hit = hits(padded(open_, DEPTH), part.targets)
    return {
        "ndcg_at_10": ndcg(hit, part.targets, 10),
        "ndcg_at_50": ndcg(hit, part.targets, 50),
        "recall_at_50": recall(hit, part.targets, 50),
        "recall_at_500": recall(hit, part.targets, 500),
        "mrr": reciprocal_rank(hit),
    }


def coverage(ranked: Sequence[Rows], items: int, k: int) -> float:
    """The share of the catalogue that stands among the first `k` of any ranking."""
    shown = np.unique(padded(ranked, k))
    return float(np.count_nonzero(shown >= 0)) / items
