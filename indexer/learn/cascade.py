"""The cascade, tried out: what is won for what cost when only doubtful questions go on to the strong ranker.

Q questions, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from indexer.contract.cascade import CascadeSpec, doubt, log_shares
from indexer.learn.intervals import Bootstrap, Interval
from indexer.learn.lists import Lists, Scores

Seconds = npt.NDArray[np.float64]
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
_LEVELS = 41
_DRAWS = 20_000


@dataclass(frozen=True, slots=True)
class Step:
    """One row: the share that was sent on, NDCG@10 and its lift over the fast ranker alone, paired by user.

    `kept`: of what the strong ranker alone has over the fast one (NaN where that is not above 0). Milliseconds a
    question, of both rankers together.
    """

    share: float
    ndcg_at_10: float
    lift: Interval
    kept: float
    mean_ms: float
    p99_ms: float


def fit_cascade(
    fast: Scores, lists: Lists, *, strong_ms: float, kind: Literal["margin", "band"] = "margin", page: int = 10
) -> CascadeSpec:
    """Calibrates the fast ranker's scores, float32 [Q, C], on labels, and finds the levels of doubt by share.

    Raises ValueError when no question has candidates beyond its page.
    """
    slope, offset = _calibrated(fast, lists) if kind == "band" else (1.0, 0.0)
    spec = CascadeSpec(kind=kind, page=page, slope=slope, offset=offset, levels=(0.0, 0.0), strong_ms=strong_ms)
    doubts = _doubts(fast, lists, spec)
    cut = doubts[np.isfinite(doubts)]
    if not len(cut):
        raise ValueError(f"lists: no question has more than page = {page} candidates")
    doubts[~np.isfinite(doubts)] = cut.min()
    levels = np.quantile(doubts, np.linspace(1, 0, _LEVELS))
    return spec.model_copy(update={"levels": tuple(map(float, levels))})


def sweep(
    fast: Scores,
    strong: Scores,
    lists: Lists,
    spec: CascadeSpec,
    fast_s: Seconds,
    strong_s: Seconds,
    *,
    seed: int,
    shares: Sequence[float] = SHARES,
) -> list[Step]:
    """A row by share, from all-fast to all-strong. `fast_s` and `strong_s`: seconds a question, any number of runs.

    All-strong is the strong ranker alone: nobody asks the fast one then.
    """
    random = np.random.default_rng(seed)
    bootstrap = Bootstrap(lists.users, seed=seed)
    worth, stronger = lists.ndcg(fast), lists.ndcg(strong)
    gap = float(stronger.mean() - worth.mean())
    doubts = _doubts(fast, lists, spec)
    drawn = random.choice(fast_s, _DRAWS), random.choice(strong_s, _DRAWS)
    steps: list[Step] = []
    for wanted in shares:
        sent = np.isfinite(doubts) & (doubts >= spec.threshold(wanted)) if wanted < 1 else np.ones(len(lists), np.bool_)
        share = float(sent.mean())
        mixed = np.where(sent, stronger, worth)
        cost = drawn[0] * (wanted < 1) + drawn[1] * (np.arange(_DRAWS) < share * _DRAWS)
        steps.append(
            Step(
                share=share,
                ndcg_at_10=float(mixed.mean()),
                lift=bootstrap.lift(mixed, worth),
                kept=float(mixed.mean() - worth.mean()) / gap if gap > 0 else float("nan"),
                mean_ms=float(cost.mean()) * 1e3,
                p99_ms=float(np.percentile(cost, 99)) * 1e3,
            )
        )
    return steps


def _doubts(scores: Scores, lists: Lists, spec: CascadeSpec) -> npt.NDArray[np.float64]:
    return np.array([doubt(row[there], spec) for row, there in zip(scores, lists.present, strict=True)], np.float64)


def _calibrated(scores: Scores, lists: Lists) -> tuple[float, float]:
    """Slope and offset of Platt's probability of a purchase, by likelihood."""
    there = lists.present.any(axis=1)
    kept = np.where(lists.present, scores, -np.inf)[there].astype(np.float64)
    level = log_shares(kept)[lists.present[there]]
    bought = lists.positive[there][lists.present[there]].astype(np.float64)

    def loss(weights: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        raised = weights[0] * level + weights[1]
        miss = 1 / (1 + np.exp(-raised)) - bought
        return float((np.logaddexp(0, raised) - bought * raised).mean()), np.array([(miss * level).mean(), miss.mean()])

    slope, offset = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B").x
    return float(slope), float(offset)
