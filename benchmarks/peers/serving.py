"""How a server is told how it is to be run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Serving:
    """How a server is to be run, out of the environment that the benchmark gives it.

    `batch`: questions that are scored together at most. `door`: requests that may be inside at a time. `within_s`:
    after which nobody waits for an answer. `helped`: with a door and a time-out for a server that has none of its own.
    """

    snapshots: Path
    port: int
    batch: int
    door: int
    within_s: float
    helped: bool

    @classmethod
    def of_environment(cls) -> Serving:
        """Raises KeyError naming the variable that is missing."""
        return cls(
            Path(os.environ["PEER_SNAPSHOTS"]),
            int(os.environ["PEER_PORT"]),
            int(os.environ["PEER_BATCH"]),
            int(os.environ["PEER_DOOR"]),
            float(os.environ["PEER_WITHIN_S"]),
            os.environ["PEER_HELPED"] == "1",
        )


def environment_of(serving: Serving) -> dict[str, str]:
    """The variables that `Serving.of_environment` reads."""
    return {
        "PEER_SNAPSHOTS": str(serving.snapshots),
        "PEER_PORT": str(serving.port),
        "PEER_BATCH": str(serving.batch),
        "PEER_DOOR": str(serving.door),
        "PEER_WITHIN_S": f"{serving.within_s:g}",
        "PEER_HELPED": "1" if serving.helped else "0",
    }
