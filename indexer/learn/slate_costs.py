"""What each rule of the slate costs: NDCG@10 of the first pages that it makes of the rankings that were served."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.contract.features import Floats
from indexer.contract.items import ItemTable, Rows
from indexer.learn.evaluate import PerQuestion, hits, ndcg
from indexer.learn.intervals import Bootstrap, Interval
from indexer.learn.retrieval import Asked, padded

Ranking = tuple[Rows, Floats]
"""rows int32 [m], best first, and their scores float32 [m]."""
FirstPages = Callable[[ItemTable, npt.NDArray[np.float16], Sequence[Ranking]], Mapping[str, Sequence[Rows]]]
"""By rule, the first page that it makes of each ranking, rows int32; the vectors float16 [n, d] are the snapshot's."""
_FIRST = 10


def slate_costs(
    asked: Sequence[Asked], ranked: Sequence[Rows], pages: Mapping[str, Sequence[Rows]], *, seed: int
) -> dict[str, Any]:
    """By rule:

    ndcg_at_10      of its pages
    difference      from that of the rankings, paired, with the 95 % interval over users; below 0: what it costs
    lift            the same as a share of theirs; None where a draw of theirs has none
    others_in_10    how many of the first ten items are others than before, on average
    """
    targets = [each.question.targets for each in asked]
    bootstrap = Bootstrap(np.array([each.question.user for each in asked], np.int64), seed=seed)
    before = _ndcg(ranked, targets)
    out: dict[str, Any] = {}
    for rule, shown in pages.items():
        after = _ndcg(shown, targets)
        lift = bootstrap.lift(after, before)
        others = [len(np.setdiff1d(new[:_FIRST], old[:_FIRST])) for new, old in zip(shown, ranked, strict=True)]
        out[rule] = {
            "ndcg_at_10": round(float(after.mean()), 5),
            "difference": _rounded(bootstrap.difference(after, before)),
            "lift": _rounded(lift) if np.isfinite([lift.mean, lift.low, lift.high]).all() else None,
            "others_in_10": round(float(np.mean(others)), 3),
        }
    return out


def _ndcg(ranked: Sequence[Rows], targets: Sequence[Rows]) -> PerQuestion:
    return ndcg(hits(padded(ranked, _FIRST), targets), targets, _FIRST)


def _rounded(interval: Interval) -> dict[str, float]:
    return {name: round(value, 5) for name, value in asdict(interval).items()}
