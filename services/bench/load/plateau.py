"""The plateau: the highest goodput that any offered load brings out of a service."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.bench.load.arrivals import Step
from services.bench.load.measure import BUSY_BOUND, Figures


@dataclass(frozen=True, slots=True)
class Sweep:
    """Offered load from `start` requests a second, times `growth` from step to step, each of `seconds`.

    It ends when goodput has not grown by more than `least_gain` over the best so far in `patience` steps, past `stop`
    requests a second, or when the generator's core is full.
    """

    start: float = 25.0
    growth: float = 1.25
    seconds: float = 8.0
    least_gain: float = 0.02
    patience: int = 3
    stop: float = 5000.0


async def sweep(measure: Callable[[Step], Awaitable[Figures]], plan: Sweep) -> list[Figures]:
    """The figures of each step, in order; `measure` puts one step on an idle service."""
    steps: list[Figures] = []
    best, without_gain, qps = 0.0, 0, plan.start
    while without_gain < plan.patience and qps <= plan.stop:
        steps.append(await measure(Step(qps, plan.seconds)))
        goodput = float(steps[-1]["goodput_qps"])
        without_gain = 0 if goodput > best * (1 + plan.least_gain) else without_gain + 1
        best = max(best, goodput)
        if float(steps[-1]["generator"]["busy"] or 0.0) >= BUSY_BOUND:
            break
        qps *= plan.growth
    return steps


def plateau_of(steps: list[Figures]) -> Figures:
    """The step of the highest goodput, in short. `reached`: more was offered, by a generator that was not itself the
    bottleneck, and brought no more; else the plateau may lie higher."""
    best = max(steps, key=lambda one: one["goodput_qps"])
    beyond = [one for one in steps if one["qps"] > best["qps"] and not one["generator_bound"]]
    return {
        "goodput_qps": best["goodput_qps"],
        "offered_qps": best["offered_qps"],
        "fallback_share": best["fallback_share"],
        "p99_ms": best["latency_ms"]["p99"],
        "reached": bool(beyond),
    }
