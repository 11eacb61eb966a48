"""The deadline ledger: one absolute monotonic time that every stage asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Clock = Callable[[], float]
"""Seconds on a monotonic clock."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When scoring must have ended, on `clock`; `reserve_s` is kept for the fallback and the encoding."""

    at: float
    reserve_s: float
    clock: Clock

    @classmethod
    def of(cls, *, caller_s: float | None, budget_s: float, reserve_s: float, clock: Clock) -> Deadline:
        """The earlier of the caller's deadline (seconds from now; None: it has none) and the scoring budget."""
        left = budget_s if caller_s is None else min(caller_s, budget_s)
        return cls(at=clock() + left, reserve_s=reserve_s, clock=clock)

    def left(self) -> float:
        """Seconds that a stage may still use; 0 when the reserve is reached."""
        return max(0.0, self.at - self.reserve_s - self.clock())
