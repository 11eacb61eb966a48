"""The operating point: the cheapest that holds the recall floor, of all kinds that were built.

Session vectors that no model has learned from are the queries, exact search is the truth. Cost is counted, not timed
(see `cost`): the same catalogue gives the same choice. What it takes on this machine is measured beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.ann.build import FLAT, Candidate
from indexer.ann.filters import filtered_points
from indexer.ann.measure import measured_ms
from indexer.ann.trials import Trials
from indexer.ann.truth import exact_truth
from indexer.contract.ann_index import AnnIndex
from indexer.contract.features import Floats
from indexer.contract.manifest import IndexSpec, SearchPoint, TriedPoint
from indexer.contract.vector_file import Half
from indexer.settings import AnnSettings


@dataclass(frozen=True, slots=True)
class Tuned:
    """The choice: its file, its point. `timed`: for the best point of each kind what it took here, for the report."""

    file: Path
    spec: IndexSpec
    timed: list[dict[str, Any]]


def tune(candidates: Sequence[Candidate], vectors: Half, queries: Floats, settings: AnnSettings, *, seed: int) -> Tuned:
    """Chooses by `queries` float32 [q, d] on vectors float16 [n, d].

    When no point holds the floor, the one of highest recall is given: a gate refuses it. When none that holds it is
    within `settings.max_ms`, the cheapest that holds it.
    """
    if candidates[0].kind == FLAT:
        return Tuned(candidates[0].file, IndexSpec(kind=FLAT, recall_at_500=1.0), [])
    truth = exact_truth(vectors, queries)
    trials = [Trials.of(each, vectors, truth) for each in candidates]
    least_ms = math.inf
    for each in trials:
        each.run(settings.recall_floor, least_ms)
        least_ms = min(least_ms, each.holding_ms(settings.recall_floor))
    trials = [each for each in trials if each.tried]
    best = [choose(each.tried, settings.recall_floor, settings.max_ms) for each in trials]
    chosen = choose(best, settings.recall_floor, settings.max_ms)
    winner = trials[best.index(chosen)]
    timed = measured_ms([(each.index, _point(point)) for each, point in zip(trials, best, strict=True)], queries)
    return Tuned(
        winner.candidate.file,
        IndexSpec(
            kind=chosen.kind,
            nprobe=chosen.nprobe,
            refine=chosen.refine,
            recall_at_500=chosen.recall_at_500,
            filtered=_filtered(winner.index, vectors, queries, chosen, settings, seed),
            table=tuple(point for each in trials for point in each.tried),
        ),
        [point.model_dump() | times for point, times in zip(best, timed, strict=True)],
    )


def choose(points: Sequence[TriedPoint], floor: float, max_ms: float) -> TriedPoint:
    """The cheapest that holds floor and bound; else the cheapest that holds the floor; else that of highest recall.

    The floor is held by what is `low`; where no point does, by the mean. The first of equals.
    """
    holding = [point for point in points if point.low >= floor] or [
        point for point in points if point.recall_at_500 >= floor
    ]
    if not holding:
        return max(points, key=lambda point: point.recall_at_500)
    quick = [point for point in holding if point.p99_ms <= max_ms]
    return min(quick or holding, key=lambda point: point.ms)


def _filtered(
    index: AnnIndex, vectors: Half, queries: Floats, chosen: TriedPoint, settings: AnnSettings, seed: int
) -> tuple[SearchPoint, ...]:
    if index.lists is None:
        return ()
    return filtered_points(index, vectors, queries, _point(chosen), floor=settings.recall_floor, seed=seed)


def _point(tried: TriedPoint) -> SearchPoint:
    return SearchPoint(share=1, nprobe=tried.nprobe, refine=tried.refine, recall_at_500=tried.recall_at_500)
