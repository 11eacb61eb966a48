"""The run: every request leaves when its moment has come; nothing waits for an answer."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from services.bench.load.alarm import Alarm
from services.bench.load.arrivals import Plan
from services.bench.load.ask import Ask, Outcome
from services.bench.load.usage import Usage, machine_cpu_s

DROPPED = "GENERATOR_DROPPED"
"""The code of what was never sent: too many requests were outstanding."""
MAX_OUTSTANDING = 4096
_TURN = 16
"""Requests that leave in one turn of the event loop, when several are due."""

Clock = Callable[[], float]
Sleep = Callable[[float], Awaitable[None]]
Probe = Callable[[], Usage]


class Sample(NamedTuple):
    """One arrival. Seconds: `lag` from the intended moment to the sending, `took` from the intended moment to the last
    byte."""

    lag: float
    took: float
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Boundary:
    """What stood on the meters where a step began, or at the end. Seconds; `service` None: its process is unknown;
    `machine_cpu_s`: of all processes."""

    wall_s: float
    own_cpu_s: float
    service: Usage | None
    machine_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A sample for every arrival of the plan, in its order, and a boundary for every start of a step and the end."""

    plan: Plan
    samples: tuple[Sample, ...]
    boundaries: tuple[Boundary, ...]


async def run_steps(
    ask: Ask,
    plan: Plan,
    *,
    probe: Probe | None = None,
    max_outstanding: int = MAX_OUTSTANDING,
    clock: Clock = time.perf_counter,
    cpu: Clock = time.process_time,
    sleep: Sleep | None = None,
) -> Measured:
    """Puts the plan on `ask` and waits for the last answer.

    `probe`: reads what the service used so far; called in a thread. A request that is due while `max_outstanding` are
    under way is not sent, and counted. `sleep`: between the sendings; None: an `Alarm`. How late a request leaves
    counts as latency. Raises what an `ask` raises.
    """
    with ExitStack() as stack:
        stack.enter_context(_quiet_collector())
        waits = sleep or stack.enter_context(Alarm()).sleep
        return await _Run(ask, plan, probe, max_outstanding, clock, cpu, waits).measured()


class _Run:
    def __init__(
        self, ask: Ask, plan: Plan, probe: Probe | None, most: int, clock: Clock, cpu: Clock, sleep: Sleep
    ) -> None:
        self._ask = ask
        self._plan = plan
        self._probe = probe
        self._most = most
        self._clock = clock
        self._cpu = cpu
        self._sleep = sleep
        self._samples: list[Sample | None] = [None] * len(plan.at)
        self._under_way: set[asyncio.Task[None]] = set()
        self._escaped: BaseException | None = None

    async def measured(self) -> Measured:
        first = await self._boundary()
        begun = self._clock()
        meters = asyncio.create_task(self._meters(begun))
        try:
            await self._send(begun)
            while self._under_way and self._escaped is None:
                await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
            if self._escaped is not None:
                raise self._escaped
            between = await meters
        finally:
            left = [meters, *self._under_way]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        samples = tuple(sample for sample in self._samples if sample is not None)
        assert len(samples) == len(self._plan.at), "every arrival ends once"
        return Measured(self._plan, samples, (first, *between, await self._boundary()))

    async def _send(self, begun: float) -> None:
        turn = 0
        for index, at in enumerate((self._plan.at + begun).tolist()):
            while (left := at - self._clock()) > 0:
                await self._sleep(left)
                turn = 0
            if self._escaped is not None:
                return
            if len(self._under_way) >= self._most:
                late = self._clock() - at
                self._samples[index] = Sample(late, late, Outcome(code=DROPPED))
            else:
                task = asyncio.create_task(self._one(index, at))
                self._under_way.add(task)
                task.add_done_callback(self._ended)
            turn += 1
            if turn % _TURN == 0:
                await asyncio.sleep(0)

    async def _one(self, index: int, at: float) -> None:
        sent = self._clock()
        outcome = await self._ask(index)
        self._samples[index] = Sample(sent - at, self._clock() - at, outcome)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._escaped = self._escaped or error

    async def _meters(self, begun: float) -> list[Boundary]:
        """The boundaries between the steps."""
        read = []
        for at in self._plan.starts[1:-1]:
            if (left := begun + at - self._clock()) > 0:
                await asyncio.sleep(left)
            read.append(await self._boundary())
        return read

    async def _boundary(self) -> Boundary:
        service = await asyncio.to_thread(self._probe) if self._probe is not None else None
        return Boundary(self._clock(), self._cpu(), service, machine_cpu_s())


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """What was made before the run is not searched for cycles meanwhile: of 100,000 requests that takes 100 ms."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
