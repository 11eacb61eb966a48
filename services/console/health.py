"""Whether the service may be sent traffic, as `/readyz` tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Readiness:
    """`ready`: send traffic. `degraded`: it answers with less than a whole snapshot; `reasons` say why. `refused`: why
    CURRENT is not what is served; empty when it is."""

    ready: bool
    degraded: bool
    snapshot_id: str
    reasons: tuple[str, ...]
    refused: str = ""
