"""What a load is put on: one call that asks, and what became of it. Nothing else of the generator knows a transport."""

from __future__ import annotations

from typing import NamedTuple, Protocol

OK = "OK"
RANKED = "RANKED"
"""The rung of a complete answer of two stages."""


class Outcome(NamedTuple):
    """What became of one request.

    `code`: "OK", or why there is no answer: the name of a gRPC status ("DEADLINE_EXCEEDED"), "HTTP 503", "REFUSED".
    `rung` and `cache`: names of `feedline.v1.Rung` and `CacheOutcome` without their prefix; a system that has no
    ladder answers "RANKED" when both stages ran, one without a cache "OFF". `degraded`: less than was asked for.
    `stages`: (name, milliseconds) as the server tells them. `size`: bytes of the answer.
    """

    code: str = OK
    rung: str = ""
    degraded: bool = False
    cache: str = "OFF"
    reasons: tuple[str, ...] = ()
    stages: tuple[tuple[str, float], ...] = ()
    size: int = 0


class Ask(Protocol):
    """Sends the request at `index` and waits for the last byte of its answer.

    Requests are made before the run, so that sending is all that is left; `index` counts from 0 in the order of the
    plan. Each call carries its own deadline and returns by then: what goes wrong is an `Outcome`, never an exception
    (one that escapes ends the run). Many calls are under way at once, on one event loop.
    """

    async def __call__(self, index: int) -> Outcome:
        """What became of it."""
        ...
