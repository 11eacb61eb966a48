"""What the cache counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from typing import TypeAlias

from cache.envelope import Rejection
from cache.tier import Unavailability


class Outcome(Enum):
    """What the cache did for one question."""

    OFF = auto()  # Switched off: computed, alone.
    LOCAL = auto()  # Found in the process.
    SHARED = auto()  # Found in the shared tier.
    JOINED = auto()  # Waited for another's computation of the same question.
    MISS = auto()  # Computed now.
    STALE = auto()  # Expired, and all there is.


class WriteOutcome(Enum):
    """What became of an answer that was computed."""

    WRITTEN = auto()  # Into the shared tier.
    FAILED = auto()  # The shared tier was unavailable.
    DROPPED = auto()  # Too many writes were in flight.
    TOO_LARGE = auto()  # Above the limit: kept nowhere.
    NOT_STORABLE = auto()  # Degraded: kept nowhere.


CacheEvent: TypeAlias = Outcome | WriteOutcome | Rejection | Unavailability
Observer: TypeAlias = Callable[[CacheEvent], None]


@dataclass(slots=True)
class CacheCounters:
    """How often each thing happened since the start. `observer` is told of each as it happens, and must not raise."""

    off: int = 0
    local: int = 0
    shared: int = 0
    joined: int = 0
    miss: int = 0
    stale: int = 0
    written: int = 0
    write_failed: int = 0
    write_dropped: int = 0
    too_large: int = 0
    not_storable: int = 0
    rejected: int = 0
    unavailable: int = 0
    observer: Observer | None = field(default=None, repr=False)

    def count(self, event: CacheEvent) -> None:
        """Count one event. Rejections and failures are told apart by the observer only."""
        match event:
            case Rejection():
                self.rejected += 1
            case Unavailability():
                self.unavailable += 1
            case WriteOutcome.FAILED:
                self.write_failed += 1
            case WriteOutcome.DROPPED:
                self.write_dropped += 1
            case Outcome() | WriteOutcome():
                name = event.name.lower()
                setattr(self, name, getattr(self, name) + 1)
        if self.observer is not None:
            self.observer(event)

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "observer"}
