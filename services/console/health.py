"""Whether the service may be sent traffic, as `/readyz` tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readiness:
    """`ready`: send traffic. `degraded`: it answers with less than a whole snapshot; `reasons` say why."""

    ready: bool
    degraded: bool
    snapshot_id: str
    reasons: tuple[str, ...]
