"""When requests leave: steps of a rate, or moments given in a file. Fixed before the run, never moved by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from services.errors import StartError

Seconds = npt.NDArray[np.float64]
_MAX_ARRIVALS = 10_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """`qps` requests a second for `seconds`. `spike`: told by a multiple of the step before. Not `counted`: warm-up."""

    qps: float
    seconds: float
    spike: bool = False
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps that follow each other without a pause, and the arrivals `at` float64 [n], seconds from the start, in
    order. `step` int64 [n]: the step that each belongs to."""

    steps: tuple[Step, ...]
    at: Seconds
    step: npt.NDArray[np.int64]

    @property
    def starts(self) -> list[float]:
        """Where each step begins, and where the last one ends; seconds."""
        return [0.0, *np.cumsum([step.seconds for step in self.steps]).tolist()]


def poisson(steps: Sequence[Step], seed: int) -> Plan:
    """Independent arrivals: in a step of rate r and length s their number is Poisson(r s), their moments uniform."""
    random = np.random.default_rng(seed)
    begins = 0.0
    at, number = [], []
    for place, step in enumerate(steps):
        count = int(random.poisson(step.qps * step.seconds))
        at.append(begins + np.sort(random.uniform(0.0, step.seconds, count)))
        number.append(np.full(count, place, np.int64))
        begins += step.seconds
    return Plan(tuple(steps), np.concatenate(at), np.concatenate(number))


def given(moments: Sequence[float]) -> Plan:
    """Arrivals at these moments, seconds, shifted so that the first is 0: one step that lasts as long as they do."""
    at = np.sort(np.asarray(moments, np.float64))
    at -= at[0]
    seconds = float(at[-1]) * len(at) / max(1, len(at) - 1) or 1.0
    return Plan((Step(len(at) / seconds, seconds),), at, np.zeros(len(at), np.int64))


def read_moments(path: Path) -> list[float]:
    """The moments of a file: one number a line, seconds; empty lines and what follows a "#" do not count.

    Raises StartError naming the line.
    """
    moments = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            moment = float(text)
        except ValueError:
            moment = np.nan
        if not np.isfinite(moment):
            raise StartError(f"{path}: line {number}: expected seconds, a finite number, got {text!r:.40}")
        moments.append(moment)
    if not moments:
        raise StartError(f"{path}: expected at least one moment, found none")
    return moments


def parse_steps(text: str) -> list[Step]:
    """Steps of "50:10,100:10,5x:3": requests a second, ":", seconds; "5x": a spike, five times the last rate that was
    no spike. Raises StartError naming the step."""
    steps: list[Step] = []
    base = 0.0
    for number, part in enumerate(text.split(","), 1):
        rate, _, length = part.strip().partition(":")
        spike = rate.endswith("x")
        qps, seconds = _positive(rate.removesuffix("x"), number, part), _positive(length, number, part)
        if spike and not steps:
            raise StartError(f"steps: step 1: {part!r}: a spike is a multiple of a step before it")
        base = base if spike else qps
        steps.append(Step(base * qps if spike else qps, seconds, spike))
    if sum(step.qps * step.seconds for step in steps) > _MAX_ARRIVALS:
        raise StartError(f"steps: {text!r}: more than {_MAX_ARRIVALS:,} requests")
    return steps


def _positive(text: str, number: int, part: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < np.inf:
        raise StartError(f'steps: step {number}: {part!r}: expected "RATE:SECONDS" or "TIMESx:SECONDS", both above 0')
    return value
