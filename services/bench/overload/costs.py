"""What an answer of each kind costs the CPU, each measured by a run that has hardly any other kind in it.

hit       repeated questions alone, after each was asked once
fallback  requests of a priority for which the door is shut, by `scoring.prefetch_share = 0`: nothing is scored
scored    new questions just below the plateau, where batches are nearly as large as they are under load; what little
          fell back there is taken off at its own cost

CPU: of the service and its children (the embedded state server among them), user and system, a request. Hits and
fallbacks are asked at a rate that fills most of the cores: an idle server wakes up for each call, a busy one finds
several waiting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.bench.load.arrivals import Step
from services.bench.load.measure import Figures
from services.bench.load.plateau import Sweep, plateau_of, sweep
from services.bench.overload.law import hit_share
from services.bench.overload.service import Draw, Say, Tested

_FULL = 0.8
"""Of the cores, that runs of hits and of fallbacks use."""
_BELOW = 0.9
"""Of the plateau, at which scored answers are priced."""
_CEILING_QPS = 2500.0
"""Of the generator, with room to spare."""
_COARSE_S = 4.0
_PILOT_S = 2.0


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of an answer at `qps` requests a second; `purity`: the share of answers that were of the kind."""

    cpu_s: float
    qps: float
    answers: int
    purity: float

    def facts(self) -> dict[str, Any]:
        """As JSON, in milliseconds."""
        return {
            "cpu_ms": round(self.cpu_s * 1e3, 4),
            "qps": round(self.qps, 1),
            "answers": self.answers,
            "purity": round(self.purity, 4),
        }


METHOD = {
    "cores": "those that the service may use",
    "scored": f"new questions at {_BELOW:.0%} of the plateau, less what fell back there",
    "hit": f"repeated questions alone, at a rate that uses about {_FULL:.0%} of the cores",
    "fallback": f"requests that find the door shut (scoring.prefetch_share=0), at about {_FULL:.0%} of the cores",
    "cpu": "user and system, of the service and its children, a request",
}


async def find_plateau(tested: Tested, draw: Draw, say: Say) -> tuple[Figures, list[Figures]]:
    """The plateau, and the steps by which it was found: a coarse sweep, then a fine one around the best of it."""
    options = tested.options

    async def measure(step: Step) -> Figures:
        found = await tested.one(step.qps, step.seconds, draw)
        say(f"offered {found['offered_qps']:,.1f}: {found['goodput_qps']:,.1f} complete answers a second")
        return found

    coarse = await sweep(measure, Sweep(options.sweep_from, 1.5, min(_COARSE_S, options.seconds)))
    around = float(plateau_of(coarse)["offered_qps"]) / 1.3
    fine = await sweep(measure, Sweep(around, 1.1, options.seconds))
    return plateau_of(fine), [*coarse, *fine]


async def cost_of_hit(tested: Tested, draw: Draw, first_qps: float) -> Cost:
    """`draw` makes requests that are all answered out of the cache."""
    step = await _nearly_full(tested, draw, first_qps)
    return _cost(step, hit_share(step))


async def cost_of_fallback(tested: Tested, draw: Draw, first_qps: float) -> Cost:
    """`draw` makes requests that find the door shut."""
    step = await _nearly_full(tested, draw, first_qps)
    return _cost(step, step["fallback_share"] or 0.0)


async def cost_of_scored(tested: Tested, draw: Draw, plateau_qps: float, fallback: Cost) -> Cost:
    """`draw` makes new questions."""
    step = await tested.one(_BELOW * plateau_qps, tested.options.seconds, draw)
    return scored_alone(step, fallback)


def scored_alone(step: Figures, fallback: Cost) -> Cost:
    """What a scored answer of the step cost, once its fallbacks are paid for. Infinite where nothing was scored."""
    fell = round((step["fallback_share"] or 0.0) * step["answered"])
    scored = step["answered"] - fell
    used = max(0.0, step["service"]["cpu_s_with_children"] - fell * fallback.cpu_s)
    return Cost(
        used / scored if scored else float("inf"), step["offered_qps"], scored, scored / max(1, step["answered"])
    )


async def _nearly_full(tested: Tested, draw: Draw, first_qps: float) -> Figures:
    """At a rate that a short run before it says will use `_FULL` of the cores."""
    pilot = await tested.one(first_qps, min(_PILOT_S, tested.options.seconds), draw)
    each_s = max(1e-5, pilot["service"]["cpu_s_with_children"] / max(1, pilot["answered"]))
    return await tested.one(min(_CEILING_QPS, _FULL * tested.cores / each_s), tested.options.seconds, draw)


def _cost(step: Figures, purity: float) -> Cost:
    used = step["service"]["cpu_s_with_children"]
    return Cost(used / max(1, step["answered"]), step["offered_qps"], step["answered"], purity)
