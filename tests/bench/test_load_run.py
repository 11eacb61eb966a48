"""The open loop: nothing waits, and what is late is charged for it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from services.bench.load.alarm import Alarm
from services.bench.load.arrivals import Plan, Step, poisson
from services.bench.load.ask import Outcome
from services.bench.load.measure import figures
from services.bench.load.run import DROPPED, Measured, run_steps
from services.bench.load.usage import Usage
from tests.clock import ManualClock

GOOD = Outcome(rung="RANKED", cache="MISS")


def plan_of(*moments: float, seconds: float = 1.0) -> Plan:
    return Plan((Step(len(moments) / seconds, seconds),), np.array(moments), np.zeros(len(moments), np.int64))


class Hand:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.clock = ManualClock(0.0)

    async def sleep(self, seconds: float) -> None:
        until = self.clock() + seconds
        await asyncio.sleep(0)  # What was due begins, and may take its time.
        self.clock.now = max(self.clock(), until)


async def by_hand(ask: Any, plan: Plan, hand: Hand, *, max_outstanding: int = 100) -> Measured:
    return await run_steps(
        ask, plan, clock=hand.clock, cpu=hand.clock, sleep=hand.sleep, max_outstanding=max_outstanding
    )


async def test_requests_leave_at_their_moments_though_nothing_is_answered() -> None:
    hand, released = Hand(), asyncio.Event()
    sent: list[tuple[int, float]] = []

    async def ask(index: int) -> Outcome:
        sent.append((index, hand.clock()))
        if index == 2:
            hand.clock.advance(1.0)
            released.set()
        await released.wait()
        return GOOD

    measured = await by_hand(ask, plan_of(0.1, 0.2, 0.5), hand)
    assert [index for index, _ in sent] == [0, 1, 2]
    assert [at for _, at in sent] == pytest.approx([0.1, 0.2, 0.5])
    assert [one.took for one in measured.samples] == pytest.approx([1.4, 1.3, 1.0])


async def test_latency_counts_from_the_intended_moment_when_the_generator_is_late() -> None:
    """The first answer keeps the generator's thread for a second: what was due meanwhile is charged for it."""
    hand = Hand()

    async def ask(index: int) -> Outcome:
        hand.clock.advance(1.0 if index == 0 else 0.01)
        return GOOD

    measured = await by_hand(ask, plan_of(0.0, 0.1, 0.9), hand)
    assert [one.took for one in measured.samples] == pytest.approx([1.0, 0.91, 0.12], abs=0.011)
    assert measured.samples[1].lag == pytest.approx(0.9)
    (step,) = figures(measured)
    assert step["generator_bound"] is True
    assert "lag p99" in step["generator_bound_by"][0]


async def test_what_is_due_beyond_the_cap_is_not_sent_and_counted() -> None:
    hand, released = Hand(), asyncio.Event()
    sent: list[int] = []

    async def ask(index: int) -> Outcome:
        sent.append(index)
        if len(sent) == 2:
            asyncio.get_running_loop().call_later(0.05, released.set)
        await released.wait()
        return GOOD

    measured = await by_hand(ask, plan_of(0.1, 0.2, 0.3, 0.4), hand, max_outstanding=2)
    assert sent == [0, 1]
    assert [one.outcome.code for one in measured.samples] == ["OK", "OK", DROPPED, DROPPED]
    (step,) = figures(measured)
    assert (step["offered"], step["sent"], step["generator_dropped"], step["answered"]) == (4, 2, 2, 2)
    assert step["generator_bound"] is True


async def test_what_an_ask_raises_ends_the_run_and_what_is_under_way() -> None:
    async def ask(index: int) -> Outcome:
        if index == 1:
            raise ValueError("not an outcome")
        await asyncio.Event().wait()
        return GOOD

    with pytest.raises(ValueError, match="not an outcome"):
        await by_hand(ask, plan_of(0.1, 0.2, 0.3), Hand())
    assert len(asyncio.all_tasks()) == 1


async def test_meters_are_read_at_every_start_of_a_step_and_at_the_end() -> None:
    reads: list[Usage] = []

    def probe() -> Usage:
        reads.append(Usage(len(reads), 2 * len(reads), 5, 3, 2, 6, 7))
        return reads[-1]

    async def ask(index: int) -> Outcome:
        return GOOD

    measured = await run_steps(ask, poisson([Step(100, 0.1), Step(200, 0.1)], seed=1), probe=probe)
    assert [one.service for one in measured.boundaries] == reads
    first, second = figures(measured)
    assert (first["service"]["cpu_s"], second["service"]["cpu_s_with_children"]) == (1, 2)
    assert first["offered"] + second["offered"] == len(measured.samples)


async def test_an_alarm_never_rings_early_and_wakes_one_waiter() -> None:
    loop = asyncio.get_running_loop()
    with Alarm() as alarm:
        for seconds in (1e-9, 0.0003, 0.01):
            begun = loop.time()
            await alarm.sleep(seconds)
            assert loop.time() - begun >= seconds
        waiting = asyncio.create_task(alarm.sleep(60))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="one waiter"):
            await alarm.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await alarm.sleep(0.001)
