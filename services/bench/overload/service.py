"""A service under test: what is put on it, and what comes of that."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np

from services.bench.load import arrivals
from services.bench.load.arrivals import Plan, Step
from services.bench.load.ask import OK
from services.bench.load.client import Call, GrpcAsk, calls_to
from services.bench.load.measure import Figures, figures, quantiles
from services.bench.load.mix import Asked
from services.bench.load.run import DROPPED, Measured, Sample, run_steps
from services.bench.load.usage import usage_of
from services.bench.overload.options import OverloadOptions
from services.bench.overload.retrying import Retrying

Draw = Callable[[int], Sequence[Asked]]
"""Makes so many requests."""
Say = Callable[[str], None]
"""Is told how far a measurement has come."""
_SETTLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What came of a plan: every sample, the figures of its steps, and the requests that were asked again."""

    measured: Measured
    steps: list[Figures]
    asked_again: int

    @property
    def bad(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """bool [n]: which requests got a fallback, no answer, or were never sent."""
        said = (one.outcome for one in self.measured.samples)
        return np.array([one.code != OK or one.degraded for one in said], np.bool_)

    def late(self, budget_ms: float) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """bool [n]: which ended later than within the budget."""
        return np.array([one.took * 1e3 > budget_ms for one in self.measured.samples], np.bool_)


@dataclass(frozen=True, slots=True)
class Tested:
    """A service, or a server in its place, and connections to it. `cores`: those that its process may use."""

    calls: Sequence[Call]
    pid: int
    cores: int
    options: OverloadOptions

    async def put(self, steps: Sequence[Step], draws: Sequence[Draw], *, retries: int = 0) -> Outcomes:
        """Steps that follow each other without a pause, each asked what its `draw` makes; then a breath, idle.

        `retries`: so many times a request is asked again when it fails or falls back.
        """
        plan = arrivals.poisson(steps, self.options.seed)
        counts = np.bincount(plan.step, minlength=len(steps)).tolist()
        asked = [one for draw, count in zip(draws, counts, strict=True) for one in draw(count)]
        found = await self._run(plan, asked, retries)
        await asyncio.sleep(_SETTLE_S)
        return found

    async def one(self, qps: float, seconds: float, draw: Draw) -> Figures:
        """The figures of one step by itself."""
        (step,) = (await self.put([Step(qps, seconds)], [draw])).steps
        return step

    async def _run(self, plan: Plan, asked: Sequence[Asked], retries: int) -> Outcomes:
        options = self.options
        plain = GrpcAsk(self.calls, asked, deadline_s=options.deadline_ms / 1e3)
        ask = Retrying(plain, most=retries, seed=options.seed)
        probe = partial(usage_of, self.pid)
        measured = await run_steps(ask, plan, probe=probe, max_outstanding=options.max_outstanding)
        steps = figures(measured, budget_ms=options.budget_ms)
        for place, step in enumerate(steps):
            step["fallback_ms"] = _fallback_ms(measured.samples, plan, place)
        return Outcomes(measured, steps, ask.again)


@asynccontextmanager
async def tested(target: str, pid: int, options: OverloadOptions) -> AsyncIterator[Tested]:
    """Connected to host:port. Raises StartError when nobody listens there."""
    async with calls_to(target, options.channels) as calls:
        yield Tested(calls, pid, len(os.sched_getaffinity(pid)), options)


def _fallback_ms(samples: Sequence[Sample], plan: Plan, place: int) -> dict[str, float | None]:
    """Latency of the fallbacks of one step."""
    of_step = (samples[at] for at in np.flatnonzero(plan.step == place).tolist())
    return quantiles([one.took * 1e3 for one in of_step if one.outcome.code != DROPPED and one.outcome.degraded])
