"""`feedline bench peers`: Feedline and other servers around the same two stages, under the same load.

Each system is measured by itself: first how many answers a second it gives to a few clients that never pause, from
which `rule` makes its door and its batches; then Feedline's plateau; then all, at multiples of that plateau, in an
order that is turned from repeat to repeat.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.peers.report import about, rows
from benchmarks.peers.rule import Limits, limits_of
from benchmarks.peers.systems import FEEDLINE, PEERS, Place, Running, running
from services.bench.load.arrivals import Step, poisson
from services.bench.load.ask import OK, RANKED, Ask, Outcome
from services.bench.load.measure import BUDGET_MS, Figures, figures
from services.bench.load.mix import Asked, Mix, Requests
from services.bench.load.plateau import Sweep, plateau_of, sweep
from services.bench.load.run import run_steps
from services.bench.load.service import pin_self
from services.bench.load.shop import of_snapshots
from services.bench.load.usage import usage_of
from services.errors import StartError

MIX = Mix(cold=0, repeated=0, deep=0, prefetch=0, histories=0)
"""Every request is a new question that both stages answer: no history, no next page, nothing that was asked before."""
QUESTIONS = 4000
COMPARED = 20
_OPEN = Limits(door=64, batch=8)
_CLIENTS = 8
_PATIENT_S = 5.0


@dataclass(frozen=True, slots=True)
class PeersOptions:
    """What is measured. `venvs`: the folder that `install.sh` was given. Times in seconds."""

    snapshots: Path
    venvs: Path
    systems: tuple[str, ...] = (FEEDLINE, *PEERS)
    times_plateau: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    repeats: int = 2
    step_s: float = 6.0
    warm_up_s: float = 3.0
    budget_ms: float = BUDGET_MS
    deadline_ms: float = 500.0
    seed: int = 1
    pin_service: int | None = 0
    pin_generator: int | None = 1


@dataclass(frozen=True, slots=True)
class _Bench:
    options: PeersOptions
    place: Place
    questions: Sequence[Asked]
    said: Callable[[str], None]

    async def load(self, one: Running, step: Step, seed: int) -> Figures:
        """The figures of one step, put on an idle system."""
        plan = poisson([step], seed)
        ask = _Turned(one.ask, seed * 997, len(self.questions))
        measured = await run_steps(ask, plan, probe=partial(usage_of, one.pid))
        (found,) = figures(measured, budget_ms=self.options.budget_ms)
        return found

    def running(self, name: str, limits: Limits, within_s: float) -> AbstractAsyncContextManager[Running]:
        """The system under these limits."""
        place = replace(self.place, deadline_s=max(self.place.deadline_s, within_s))
        return running(name, place, self.questions, batch=limits.batch, door=limits.door, within_s=within_s)

    async def answers(self) -> list[list[str]]:
        """Feedline's, to some questions: item ids in order."""
        async with self.running(FEEDLINE, _OPEN, _PATIENT_S) as one:
            return [await one.ids(index) for index in range(COMPARED)]

    async def limits(self, name: str, expected: Sequence[Sequence[str]]) -> tuple[float, Limits]:
        """Answers a second to clients that never pause, and what the rule makes of it.

        Raises StartError when the system answers a question otherwise than Feedline.
        """
        async with self.running(name, _OPEN, _PATIENT_S) as one:
            for index, ids in enumerate(expected):
                got = await one.ids(index)
                if got != ids:
                    raise StartError(f"{name}: question {index}: answered {got[:3]}..., Feedline answers {ids[:3]}...")
            await saturate(one.ask, self.options.warm_up_s, len(self.questions))
            rate = await saturate(one.ask, self.options.step_s, len(self.questions))
        if not rate:
            raise StartError(f"{name}: gave no complete answer within {_PATIENT_S:g} s to {_CLIENTS} clients")
        limits = limits_of(rate, self.options.budget_ms / 1e3)
        self.said(f"{name}: {rate:.1f} answers a second, never idle: door {limits.door}, batches up to {limits.batch}")
        return rate, limits

    async def plateau(self, limits: Limits, rate: float) -> Figures:
        """Feedline's, with the generator that measures all."""
        async with self.running(FEEDLINE, limits, self.options.budget_ms / 1e3) as one:
            await self.load(one, Step(rate / 2, self.options.warm_up_s), seed=2)
            plan = Sweep(start=0.6 * rate, growth=1.12, seconds=self.options.step_s, patience=2)
            steps = await sweep(lambda step: self.load(one, step, seed=3), plan)
        found = plateau_of(steps)
        self.said(f"{FEEDLINE}: plateau {found['goodput_qps']:.1f} answers a second, p99 {found['p99_ms']:.0f} ms")
        return found

    async def steps(self, name: str, limits: Limits, plateau_qps: float, repeat: int) -> list[Figures]:
        """The figures of each multiple of the plateau."""
        options, found = self.options, []
        async with self.running(name, limits, options.budget_ms / 1e3) as one:
            await self.load(one, Step(plateau_qps / 2, options.warm_up_s), seed=5)
            for number, times in enumerate(options.times_plateau):
                step = Step(times * plateau_qps, options.step_s)
                got = await self.load(one, step, seed=10 + 10 * repeat + number)
                found.append(got)
                self.said(
                    f"{name} at {times:g}x: offered {got['offered_qps']:.0f}, goodput {got['goodput_qps']:.1f},"
                    f" p99 {got['latency_ms']['p99']} ms, non-OK {got['non_ok']}"
                    f"{', generator bound' if got['generator_bound'] else ''}"
                )
                await asyncio.sleep(options.deadline_ms / 1e3)
        return found


async def peers(options: PeersOptions) -> list[dict[str, Any]]:
    """One row for each system and multiple of the plateau. Raises StartError naming what is missing or differs."""
    programs = options.venvs.absolute() / "peers" / "bin"
    asked = [name for name in options.systems if name != FEEDLINE]
    if asked and not (programs / "python").exists():
        raise StartError(f"{programs}: no virtual environment; make it by benchmarks/peers/install.sh {options.venvs}")
    begun = time.monotonic()

    def said(what: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {what}", file=sys.stderr, flush=True)

    shop = of_snapshots(options.snapshots)
    questions = Requests(shop, MIX, seed=options.seed).draw(QUESTIONS)
    common = about(shop, programs, asked)
    if options.pin_generator is not None:
        pin_self(options.pin_generator)
    place = Place(options.snapshots, programs, options.pin_service, options.deadline_ms / 1e3)
    bench = _Bench(options, place, questions, said)

    expected = await bench.answers()
    said(f"{FEEDLINE}: {len(shop):,} items; {COMPARED} answers to compare with")
    rates = {FEEDLINE: await bench.limits(FEEDLINE, expected)}
    plateau = await bench.plateau(rates[FEEDLINE][1], rates[FEEDLINE][0])
    measured: dict[str, list[list[Figures]]] = {name: [] for name in options.systems}
    for name in asked:
        rates[name] = await bench.limits(name, expected)
    for repeat in range(options.repeats):
        for name in turned(options.systems, repeat * 2 + 1 if repeat else 0):
            measured[name].append(await bench.steps(name, rates[name][1], plateau["goodput_qps"], repeat))
    return [
        row
        for name in options.systems
        for row in rows(name, options.times_plateau, measured[name], *rates[name], plateau, common)
    ]


def parsed_systems(text: str) -> tuple[str, ...]:
    """The systems of "feedline,ray"; all of them where nothing is said. Raises StartError naming what is none."""
    every = (FEEDLINE, *PEERS)
    if not text:
        return every
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in every]:
        raise StartError(f"systems: {', '.join(map(repr, unknown))}: expected some of {', '.join(every)}")
    return names


def parsed_loads(text: str) -> tuple[float, ...]:
    """Multiples of "0.5,1,2". Raises StartError naming the one that is no number above 0."""
    found = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise StartError(f"loads: {part.strip()!r}: expected a number above 0")
        found.append(value)
    return tuple(found)


def turned(names: Sequence[str], by: int) -> list[str]:
    """The names in their order, beginning `by` places later."""
    at = by % len(names)
    return [*names[at:], *names[:at]]


async def saturate(ask: Ask, seconds: float, questions: int, clients: int = _CLIENTS) -> float:
    """Complete answers a second to `clients` that ask again as soon as they have an answer."""
    begun = time.perf_counter()
    good = 0

    async def client(number: int) -> None:
        nonlocal good
        index = number
        while time.perf_counter() - begun < seconds:
            outcome = await ask(index % questions)
            good += outcome.code == OK and outcome.rung == RANKED
            index += clients

    await asyncio.gather(*(client(number) for number in range(clients)))
    return good / (time.perf_counter() - begun)


class _Turned:
    """An `Ask` that begins with another question and begins again where there are no more."""

    def __init__(self, ask: Ask, start: int, count: int) -> None:
        self._ask = ask
        self._start = start
        self._count = count

    async def __call__(self, index: int) -> Outcome:
        return await self._ask((self._start + index) % self._count)
