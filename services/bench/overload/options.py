"""What `feedline bench overload` is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from services.bench.load.measure import BUDGET_MS
from services.bench.load.run import MAX_OUTSTANDING
from services.errors import StartError

LOADS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Offered loads, times the provisioned peak."""

_MOST = 1000.0


@dataclass(frozen=True, slots=True)
class OverloadOptions:
    """A service is started over `snapshots`, under `config` and `settings` (environment variables).

    seconds        of each step
    answers        steps at 2x and above last until about so many answers, where that is longer; 0: `seconds` hold
    sweep_from     requests a second with which the search for the plateau begins
    hit_share      of the warm loads' requests: questions that are kept
    sessions       whether the requests of the cold loads name a session that must be read
    retries        how often the clients of the flush ask again after a failure or a fallback
    """

    snapshots: Path
    config: Path | None = None
    settings: dict[str, str] = field(default_factory=dict)
    loads: tuple[float, ...] = LOADS
    seconds: float = 10.0
    answers: int = 0
    sweep_from: float = 25.0
    hit_share: float = 0.8
    sessions: bool = False
    retries: int = 3
    budget_ms: float = BUDGET_MS
    deadline_ms: float = 500.0
    channels: int = 4
    max_outstanding: int = MAX_OUTSTANDING
    seed: int = 1
    pin_service: int | None = None
    pin_generator: int | None = None

    def lasting(self, times: float, qps: float) -> float:
        """Seconds of the step at `times` the peak, `qps` requests a second."""
        return max(self.seconds, self.answers / qps) if times >= 2 else self.seconds


def parse_loads(text: str) -> tuple[float, ...]:
    """Loads of "0.5,1,10". Raises StartError naming the one that is none."""
    return tuple(_load(part.strip()) for part in text.split(","))


def _load(part: str) -> float:
    try:
        value = float(part)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MOST:
        raise StartError(f"loads: {part!r}: expected numbers above 0 and at most {_MOST:g}, separated by commas")
    return value
