"""Clients that make an overload worse: they ask again when they get an error, or less than they wanted."""

from __future__ import annotations

import asyncio
import random

from services.bench.load.ask import OK, Ask, Outcome

_FIRST_S = 0.05


class Retrying:
    """An `Ask` that asks up to `most` times more, after 50, 100, 200, ... ms, each times a random factor in [0.5, 1.5).

    No retry budget and no mercy: shoppers who press reload. What becomes of the last try is what became of the request,
    and its latency counts from the first. `again`: the tries beyond the first so far.
    """

    def __init__(self, ask: Ask, *, most: int, seed: int) -> None:
        self._ask = ask
        self._most = most
        self._random = random.Random(seed)  # noqa: S311 - a load that can be drawn again
        self.again = 0

    async def __call__(self, index: int) -> Outcome:
        """As `Ask` says."""
        outcome = await self._ask(index)
        for turn in range(self._most):
            if outcome.code == OK and not outcome.degraded:
                break
            await asyncio.sleep(_FIRST_S * 2**turn * self._random.uniform(0.5, 1.5))
            self.again += 1
            outcome = await self._ask(index)
        return outcome
