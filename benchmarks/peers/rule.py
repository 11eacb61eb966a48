"""One rule for the door and the batches of every system, each by what it can do itself: pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

DOOR_SHARE = 0.7
"""Of the budget, that the last one through the door waits at the rate that was measured. The rest is for the way to
the server and back, and for what turning others away costs."""
LARGEST_BATCH = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """`door`: requests inside at a time; `batch`: questions that are scored together at most."""

    door: int
    batch: int


def limits_of(rate: float, budget_s: float) -> Limits:
    """The limits of a system that answers `rate` questions a second when it is never idle.

    Two batches fit behind the door: one that is computed and one that waits for it, so that nobody waits for longer
    than both.
    """
    door = max(2, round(DOOR_SHARE * budget_s * rate))
    return Limits(door, max(1, min(LARGEST_BATCH, door // 2)))
