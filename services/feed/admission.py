"""Admission: a permit, tried at the door and never waited for. The batcher cannot be called without one.

How much may be let in is another matter: see `limit`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from services.domain import Priority
from services.feed.limit import Limit

FULL = 8
PERSONAL = 2
"""Weights of permits, in eighths of a full scoring. A full one encodes, searches and reranks; a personal one reranks
candidates that are there already: half the time of a full scoring over 20,000 items that are searched one by one, and
the less the more items there are. Whole numbers, so that sums are exact."""
_ROUNDING = 1e-9


class Outcome(Enum):
    """How a permit's work ended."""

    SUCCESS = "success"
    IGNORED = "ignored"
    DROPPED = "dropped"


class Permit:
    """The right to one piece of scoring work. Ends exactly once."""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[Outcome], None]) -> None:
        self._end: Callable[[Outcome], None] | None = end

    def end(self, outcome: Outcome) -> None:
        """Gives the permit back. Raises RuntimeError when it was given back before."""
        if self._end is None:
            raise RuntimeError("a permit ends once")
        end, self._end = self._end, None
        end(outcome)


class Gate:
    """Work of at most `limit.value` full scorings at a time; prefetch may fill whole scorings of `prefetch_share` of
    them only."""

    def __init__(self, limit: Limit, prefetch_share: float) -> None:
        self._limit = limit
        self._prefetch_share = prefetch_share
        self._held = 0
        self.outcomes = dict.fromkeys(Outcome, 0)

    @property
    def in_flight(self) -> float:
        """The work that permits are held for, in full scorings."""
        return self._held / FULL

    @property
    def limit(self) -> float:
        """The work that may be in flight now, in full scorings."""
        return self._limit.value

    def admits(self, priority: Priority, weight: int = FULL) -> bool:
        """Whether a permit for work of this weight could be had now."""
        room = int(self._limit.value * FULL)
        if priority is Priority.PREFETCH:
            room = int(self._limit.value * self._prefetch_share + _ROUNDING) * FULL
        return self._held + weight <= room

    def try_acquire(self, priority: Priority, weight: int = FULL) -> Permit | None:
        """A permit for work of this weight, or None when the door is closed for this priority."""
        if not self.admits(priority, weight):
            self._limit.used(self.in_flight)
            return None
        self._held += weight
        self._limit.used(self.in_flight)

        def ended(outcome: Outcome) -> None:
            self._held -= weight
            self.outcomes[outcome] += 1

        return Permit(ended)

    def waited(self, wait_s: float, now: float) -> None:
        """Work that a permit was held for waited so long in the queue; `now` on the monotonic clock."""
        self._limit.waited(wait_s, now)
