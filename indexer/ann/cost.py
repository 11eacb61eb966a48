"""What a search costs, by the work that it takes: the same for the same catalogue, whatever else the machine does.

Nanoseconds a step were fitted to the processor time of single queries by one thread (`feedline bench ann` shows both
beside each other), on a CPU with AVX-512. They decide between points, so that ratios count and not the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Work = npt.NDArray[np.float64]
_QUERY = 160_000.0
_CENTROID = 0.06
_REFINED = 2.6
_NODE = 2.6


@dataclass(frozen=True, slots=True)
class Pace:
    """Nanoseconds of a kind: for each list that is looked into, and for each code's number in it."""

    per_list: float
    per_number: float


def lists_ms(pace: Pace, width: int, lists: int, nprobe: int, scanned: Work, refined: float) -> Work:
    """float64 [q], ms: `scanned` codes of `width` numbers in `nprobe` of `lists`; `refined` scored exactly."""
    steps = lists * width * _CENTROID + nprobe * pace.per_list + scanned * width * pace.per_number
    return (_QUERY + steps + refined * width * _REFINED) / 1e6


def graph_ms(width: int, degree: int, breadth: int, queries: int) -> Work:
    """float64 [q]: a walk that looks at the neighbours of `breadth` nodes, those of the ground level."""
    return np.full(queries, (_QUERY + breadth * 2 * degree * width * _NODE / 2) / 1e6)
