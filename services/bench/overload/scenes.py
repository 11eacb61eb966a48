"""What a service goes through: loads one by one, a step, a spike, and a cache that is lost in the middle of it."""

from __future__ import annotations

from typing import Any

from services.bench.load.arrivals import Step
from services.bench.load.measure import over_time
from services.bench.overload.law import Law
from services.bench.overload.questions import Questions
from services.bench.overload.service import Draw, Outcomes, Say, Tested
from services.bench.overload.settled import seconds_until_settled

_CALM, _STEP, _SPIKE, _AT_FLUSH = 0.5, 2.0, 10.0, 2.0
"""Loads, times the peak."""
_SPIKE_S = 3.0
_BEFORE_S = 5.0
_AFTER_S = 12.0
"""Of calm, in which the service must find back within 10 s."""
_BEFORE, _FLUSHED = "before", "flushed"
"""Tenants whose questions are kept, and whose are not."""


async def loads(tested: Tested, law: Law, draw: Draw, say: Say) -> list[dict[str, Any]]:
    """A row for each load of the options; each finds the service idle."""
    rows = []
    for times in tested.options.loads:
        qps = times * law.peak_qps
        rows.append(law.row(await tested.one(qps, tested.options.lasting(times, qps), draw)))
        say(
            f"{times:g}x: fallback {rows[-1]['fallback_share'] or 0:.1%}, law {rows[-1]['law_fallback_share']:.1%},"
            f" p99 {rows[-1]['p99_ms'] or 0:.1f} ms, non-OK {rows[-1]['non_ok']}"
        )
    return rows


async def step_up_and_down(tested: Tested, law: Law, draw: Draw) -> dict[str, Any]:
    """Calm, twice the peak, calm; `seconds_until_settled`: from the end of the load to less than 1 % of fallbacks."""
    lasts = tested.options.seconds
    steps = _steps(law, (_CALM, lasts), (_STEP, lasts), (_CALM, max(lasts, _AFTER_S)))
    found = await tested.put(steps, [draw] * 3)
    return _told(tested, law, found, since=2 * lasts)


async def spike(tested: Tested, law: Law, draw: Draw) -> dict[str, Any]:
    """Calm, ten times the peak for 3 s, calm."""
    steps = _steps(law, (_CALM, _BEFORE_S), (_SPIKE, _SPIKE_S), (_CALM, _AFTER_S))
    found = await tested.put(steps, [draw] * 3)
    return _told(tested, law, found, since=_BEFORE_S + _SPIKE_S)


async def fill(tested: Tested, questions: Questions, qps: float) -> None:
    """Asks every question that will be repeated until each has been answered once in calm."""
    every = questions.each_repeated(_BEFORE)
    await tested.one(qps, 2 * len(every) / qps, lambda count: [every[at % len(every)] for at in range(count)])


def warm(questions: Questions, hit_share: float) -> Draw:
    """Of the requests, `hit_share` are questions that `fill` has asked."""
    return lambda count: questions.mixed(count, hit_share, _BEFORE)


def repeated(questions: Questions) -> Draw:
    """Questions that `fill` has asked alone."""
    return lambda count: questions.repeated(count, _BEFORE)


async def flush(tested: Tested, law: Law, questions: Questions) -> dict[str, Any]:
    """Twice the peak with a warm cache; at one stroke nothing of what is asked is kept any more (the same questions, of
    another tenant: no tier knows them), while clients ask again whatever fails or falls back; then calm.

    `seconds_until_settled`: from the end of that load to less than 1 % of requests that fall back, fail, or end later
    than within the budget.
    """
    options, lasts = tested.options, tested.options.seconds
    steps = _steps(law, (_AT_FLUSH, lasts), (_AT_FLUSH, lasts), (_CALM, _AFTER_S))
    draws: list[Draw] = [
        lambda count, tenant=tenant: questions.mixed(count, options.hit_share, tenant)  # type: ignore[misc]
        for tenant in (_BEFORE, _FLUSHED, _FLUSHED)
    ]
    found = await tested.put(steps, draws, retries=options.retries)
    told = _told(tested, law, found, since=2 * lasts, late_is_bad=True)
    return told | {"flushed_at_s": lasts, "retries": options.retries, "asked_again": found.asked_again}


def _steps(law: Law, *parts: tuple[float, float]) -> list[Step]:
    return [Step(times * law.peak_qps, seconds) for times, seconds in parts]


def _told(tested: Tested, law: Law, found: Outcomes, *, since: float, late_is_bad: bool = False) -> dict[str, Any]:
    measured, budget_ms = found.measured, tested.options.budget_ms
    bad = found.bad | found.late(budget_ms) if late_is_bad else found.bad
    return {
        "steps": [law.row(step) for step in found.steps],
        "load_dropped_at_s": since,
        "seconds_until_settled": seconds_until_settled(measured.plan.at, bad, since),
        "over_time": over_time(measured, budget_ms=budget_ms),
    }
