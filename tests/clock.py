"""Time that a test moves by hand."""

from __future__ import annotations


class ManualClock:
    """A clock in seconds."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
