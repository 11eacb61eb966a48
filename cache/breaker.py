"""A circuit breaker: pure arithmetic over a clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum


class BreakerState(StrEnum):
    """Whether calls are let through."""

    CLOSED = "closed"  # All.
    OPEN = "open"  # None.
    HALF_OPEN = "half_open"  # One, the probe.


class Permit:
    """The right to make one call. Ends exactly once: `succeeded`, `failed` or `ignored`."""

    __slots__ = ("_breaker", "_ended", "_generation")

    def __init__(self, breaker: Breaker, generation: int) -> None:
        self._breaker = breaker
        self._generation = generation
        self._ended = False

    def succeeded(self) -> None:
        """The other side answered."""
        if self._end():
            self._breaker._on_success()

    def failed(self) -> None:
        """The other side did not answer, or not in time."""
        if self._end():
            self._breaker._on_failure()

    def ignored(self) -> None:
        """The call says nothing about the other side, e.g. it was cancelled."""
        if self._end():
            self._breaker._on_ignored()

    def _end(self) -> bool:
        if self._ended:
            raise RuntimeError("a breaker permit ends once")
        self._ended = True
        return self._generation == self._breaker._generation


class Breaker:
    """Stops calls to something that fails, and lets one probe through from time to time.

    Closed: everything passes; `failures_to_open` failures in a row open it. Open: nothing passes for `first_pause_s`,
    then one probe does (half-open). A failed probe doubles the pause, up to `longest_pause_s`; a success closes the
    breaker and forgets the pauses. Calls that were let through before the last change of state change nothing, so
    that a hundred calls that fail together count as one.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        failures_to_open: int = 1,
        first_pause_s: float = 0.25,
        longest_pause_s: float = 2.0,
    ) -> None:
        if failures_to_open < 1:
            raise ValueError(f"failures_to_open: expected at least 1, got {failures_to_open}")
        if not 0 < first_pause_s <= longest_pause_s:
            raise ValueError(f"first_pause_s: expected above 0 and at most longest_pause_s, got {first_pause_s}")
        self._clock = clock
        self._failures_to_open = failures_to_open
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._state = BreakerState.CLOSED
        self._generation = 0
        self._failures = 0
        self._pause_s = first_pause_s
        self._reopens_at = 0.0
        self.times_opened = 0

    @property
    def state(self) -> BreakerState:
        """The state that the last call left."""
        return self._state

    def admit(self) -> Permit | None:
        """Return a permit for one call, or None if it must not be made."""
        if self._state is BreakerState.CLOSED:
            return Permit(self, self._generation)
        if self._state is BreakerState.OPEN and self._clock() >= self._reopens_at:
            self._enter(BreakerState.HALF_OPEN)
            return Permit(self, self._generation)
        return None

    def _on_success(self) -> None:
        self._failures = 0
        if self._state is BreakerState.HALF_OPEN:
            self._pause_s = self._first_pause_s
            self._enter(BreakerState.CLOSED)

    def _on_failure(self) -> None:
        self._failures += 1
        if self._state is BreakerState.HALF_OPEN:
            self._pause_s = min(2 * self._pause_s, self._longest_pause_s)
            self._open(self._pause_s)
        elif self._failures >= self._failures_to_open:
            self._open(self._pause_s)

    def _on_ignored(self) -> None:
        if self._state is BreakerState.HALF_OPEN:
            self._enter(BreakerState.OPEN)  # The probe found nothing out and the pause is over: the next call probes.

    def _open(self, pause_s: float) -> None:
        self._reopens_at = self._clock() + pause_s
        self.times_opened += 1
        self._enter(BreakerState.OPEN)

    def _enter(self, state: BreakerState) -> None:
        self._state = state
        self._generation += 1
        self._failures = 0
