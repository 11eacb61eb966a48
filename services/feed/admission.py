"""Admission: a permit, tried at the door and never waited for. The batcher cannot be called without one."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from services.domain import Priority


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
    """At most `limit` permits at a time; prefetch may hold the first `prefetch_limit` of them only."""

    def __init__(self, limit: int, prefetch_limit: int) -> None:
        self._limit = limit
        self._prefetch_limit = prefetch_limit
        self.in_flight = 0
        self.outcomes = dict.fromkeys(Outcome, 0)

    def try_acquire(self, priority: Priority) -> Permit | None:
        """A permit, or None when the door is closed for this priority."""
        limit = self._prefetch_limit if priority is Priority.PREFETCH else self._limit
        if self.in_flight >= limit:
            return None
        self.in_flight += 1
        return Permit(self._ended)

    def _ended(self, outcome: Outcome) -> None:
        self.in_flight -= 1
        self.outcomes[outcome] += 1
