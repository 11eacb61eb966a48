"""Points at which an index holds the recall floor, each with what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from indexer.ann.build import Candidate
from indexer.ann.cost import Work, graph_ms, lists_ms
from indexer.ann.kinds import DEGREE
from indexer.ann.truth import Truth, recall
from indexer.contract.ann_index import AnnIndex, each_list
from indexer.contract.features import Floats
from indexer.contract.manifest import IndexSpec, SearchPoint, TriedPoint
from indexer.contract.vector_file import Half

_DEPTHS_OF_GRAPHS = (0.0, 1.25)
_WIDEST_GRAPH = 8192
_NEAR, _NO_MORE = 0.8, 0.0005
"""Beyond a recall of _NEAR, twice the lists that add less find what this depth of refinement can find."""


@dataclass(slots=True)
class Trials:
    """Of one index, on one truth. `tried`: what was measured, in order."""

    candidate: Candidate
    index: AnnIndex
    vectors: Half
    truth: Truth
    tried: list[TriedPoint] = field(default_factory=list)
    _scanned: Work | None = None

    @classmethod
    def of(cls, candidate: Candidate, vectors: Half, truth: Truth) -> Trials:
        """Reads the index."""
        spec = IndexSpec(kind=candidate.name, recall_at_500=0)
        return cls(candidate, AnnIndex.load(candidate.file, vectors, spec), vectors, truth)

    def run(self, floor: float, least_ms: float = math.inf) -> None:
        """For each depth of refinement, the least nprobe with recall, less its error, >= `floor`.

        A depth is given up where it costs more than `least_ms`, at which another index holds the floor, or than what
        already holds it here, or where more lists find no more.
        """
        lists = self.candidate.lists
        most = self.index.lists.nlist if self.index.lists is not None else _WIDEST_GRAPH
        start = 1 if self.index.lists is not None else self.truth.k
        for refine in lists.refine if lists else _DEPTHS_OF_GRAPHS:
            smallest(partial(self.measure, refine, min(least_ms, self.holding_ms(floor))), floor, start, most)

    def holding_ms(self, floor: float) -> float:
        """The least cost at which the floor was held; infinite where it was not."""
        return min((each.ms for each in self.tried if each.low >= floor), default=math.inf)

    def measure(self, refine: float, least_ms: float, nprobe: int) -> float:
        """Recall at a point less its error; noted with its cost. NaN, and nothing noted, where it costs `least_ms`."""
        cost = self._cost(nprobe, refine)
        if cost.mean() >= least_ms:
            return math.nan
        point = SearchPoint(share=1, nprobe=nprobe, refine=refine, recall_at_500=0)
        found = recall(self.index, self.vectors, self.truth, point)
        self.tried.append(
            TriedPoint(
                kind=self.candidate.name,
                nprobe=nprobe,
                refine=refine,
                recall_at_500=found.mean,
                low=found.low,
                ms=round(float(cost.mean()), 4),
                p99_ms=round(float(np.percentile(cost, 99)), 4),
                bytes=self.candidate.bytes,
            )
        )
        return found.low

    def _cost(self, nprobe: int, refine: float) -> Work:
        lists = self.candidate.lists
        if lists is None or self.index.lists is None:
            return graph_ms(self.vectors.shape[1], DEGREE, nprobe, len(self.truth.queries))
        if self._scanned is None:
            self._scanned = scanned(self.index, self.truth.queries)
        codes = self._scanned[:, nprobe - 1]
        deep = np.minimum(refine * self.truth.k, codes).mean() if refine else 0.0
        return lists_ms(lists.pace, self.index.lists.d, self.index.lists.nlist, nprobe, codes, float(deep))


def scanned(index: AnnIndex, queries: Floats) -> Work:
    """float64 [q, lists]: codes in the nearest list, in the nearest two, and so on."""
    assert index.lists is not None
    sizes = np.zeros(index.lists.nlist)
    for number, rows in each_list(index.lists):
        sizes[number] = len(rows)
    _, nearest = index.lists.quantizer.search(index.inside(queries), index.lists.nlist)
    return np.cumsum(sizes[nearest], axis=1)


def smallest(recall_at: Callable[[int], float], floor: float, start: int, most: int) -> int:
    """The least number of `start`..`most` with `recall_at` >= `floor`, within a sixteenth.

    The last one tried where none has it: `most`, or where twice as many find no more, or where `recall_at` is NaN.
    """
    start = high = min(start, most)
    last, found = 0.0, recall_at(high)
    while found < floor and high < most and not (last > _NEAR and found - last < _NO_MORE):
        high = min(2 * high, most)
        last, found = found, recall_at(high)
    if not found >= floor:
        return high
    low = high // 2 if high > start else start - 1
    while high - low > max(1, high // 16):
        middle = (low + high) // 2
        low, high = (low, middle) if recall_at(middle) >= floor else (middle, high)
    return high
