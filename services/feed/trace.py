"""What one request met on its way: the time of each stage, and the reasons for what it got."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fallback.ladder import Reason
from services.deadline import Clock


class Trace:
    """Collects stages (milliseconds, in order of entering) and reasons (in the order met, each once)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock()
        self._stages: dict[str, float] = {}
        self._reasons: dict[Reason, None] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times what is done inside, however it ends."""
        start = self._clock()
        self._stages.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._stages[name] += (self._clock() - start) * 1e3

    def took(self, name: str, milliseconds: float, *, out_of: str) -> None:
        """Moves time to a stage from the one that it is a part of: stages add up to no more than the total."""
        self._stages[name] = self._stages.get(name, 0.0) + milliseconds
        self._stages[out_of] = self._stages.get(out_of, 0.0) - milliseconds

    def note(self, *reasons: Reason) -> None:
        """Adds reasons."""
        self._reasons.update(dict.fromkeys(reasons))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons so far."""
        return tuple(self._reasons)

    def stages(self) -> tuple[tuple[str, float], ...]:
        """The stages so far, and "total" since the start."""
        return (*self._stages.items(), ("total", (self._clock() - self._start) * 1e3))
