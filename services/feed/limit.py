"""How much work may be in flight: fixed, or learned from how long work waits in the queue. Arithmetic alone.

Queue wait says that too much is let in, whatever the reason; round-trip times drift upwards under a lasting overload,
and a limit that follows them drifts along (Netflix/concurrency-limits#134, #137).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Limit(Protocol):
    """`value` is in full scorings; it is told of what is in use and of every wait, in seconds on a monotonic clock."""

    value: float

    def used(self, in_flight: float) -> None:
        """So much is in flight, and if that is the limit, more may have been asked for."""

    def waited(self, wait_s: float, now: float) -> None:
        """A piece of work left the queue after so long, served or not."""


@dataclass(slots=True)
class FixedLimit:
    """The switch: always the same."""

    value: float

    def used(self, in_flight: float) -> None:
        """Nothing follows."""

    def waited(self, wait_s: float, now: float) -> None:
        """Nothing follows."""


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """When the limit moves, between `floor` and `ceiling` full scorings.

    target_s     mean wait of an interval above which it shrinks by the factor `shrink`
    busy         share of it that was in use at some time of an interval, from which on it grows by one
    interval_s   at least so long, and with `samples` waits at least, is an interval
    """

    ceiling: float
    floor: float = 1.0
    target_s: float = 0.012
    shrink: float = 0.9
    busy: float = 0.8
    interval_s: float = 0.1
    samples: int = 5


class AdaptiveLimit:
    """Additive growth while the queue is short, multiplicative shrinking while it is not."""

    def __init__(self, spec: LimitSpec, start: float) -> None:
        self._spec = spec
        self.value = min(max(start, spec.floor), spec.ceiling)
        self._began: float | None = None
        self._waits = 0
        self._waited_s = 0.0
        self._used = 0.0

    def used(self, in_flight: float) -> None:
        """Only the most of an interval counts."""
        self._used = max(self._used, in_flight)

    def waited(self, wait_s: float, now: float) -> None:
        """Moves the limit when an interval has ended."""
        spec = self._spec
        self._began = now if self._began is None else self._began
        self._waits += 1
        self._waited_s += wait_s
        if now - self._began < spec.interval_s or self._waits < spec.samples:
            return
        if self._waited_s / self._waits > spec.target_s:
            self.value = max(spec.floor, self.value * spec.shrink)
        elif self._used >= spec.busy * self.value:
            self.value = min(spec.ceiling, self.value + 1)
        self._began, self._waits, self._waited_s, self._used = now, 0, 0.0, 0.0
