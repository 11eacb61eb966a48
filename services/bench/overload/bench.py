"""`feedline bench overload`: a cold service, a bare server of the same bytes, a warm service, one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from services.bench.load import report as load_report
from services.bench.load.bench import run_interruptible
from services.bench.load.service import environment_of, pin_self, started
from services.bench.load.shop import Shop, of_snapshots
from services.bench.overload import scenes
from services.bench.overload.costs import (
    METHOD,
    Cost,
    cost_of_fallback,
    cost_of_hit,
    cost_of_scored,
    find_plateau,
)
from services.bench.overload.echo import echoing
from services.bench.overload.law import Law
from services.bench.overload.options import OverloadOptions
from services.bench.overload.questions import Questions
from services.bench.overload.service import Say, Tested, tested
from services.errors import StartError
from services.planner.capacity import Costs, full_load, most_load
from services.settings import Scoring

PROVISIONED = 0.75
"""The provisioned peak, of the plateau."""
_WARM_UP_S = 2.0
_SHUT = {"scoring.prefetch_share": "0"}
_COLD = {"cache.enabled": "false"}
_WARM = {"cache.enabled": "true", "cache.soft_s": "86400", "cache.hard_s": "86400"}
"""Nothing that is kept expires meanwhile."""


@dataclass(frozen=True, slots=True)
class _Cold:
    law: Law
    told: dict[str, Any]
    fallback: Cost
    answer: bytes


def run(options: OverloadOptions, command: str, say: Say) -> dict[str, Any]:
    """`overload` on an event loop of its own. SIGTERM ends it as Ctrl-C does: KeyboardInterrupt."""
    return run_interruptible(overload(options, command, say))


async def overload(options: OverloadOptions, command: str, say: Say) -> dict[str, Any]:
    """Measures; the report as JSON. `say` is told how far it has come. Raises StartError naming what is wrong."""
    shop = of_snapshots(options.snapshots)
    head = load_report.head(command)
    if options.pin_generator is not None:
        pin_self(options.pin_generator)
    async with _serving(options, _COLD, say) as service:
        cold = await _cold(service, shop, say)
    echo = await _echo(options, cold, say)
    async with _serving(options, _WARM, say) as service:
        warm = await _warm(service, shop, cold.law, say)
    return {
        **head,
        "snapshot_id": shop.snapshot_id,
        "synthetic": shop.synthetic,
        "items": len(shop),
        "settings": options.settings,
        "pinned": {"service": options.pin_service, "generator": options.pin_generator},
        "cores": service.cores,
        "budget_ms": options.budget_ms,
        "deadline_ms": options.deadline_ms,
        "hit_share_asked": options.hit_share,
        "sessions": options.sessions,
        "seed": options.seed,
        "plateau_qps": cold.law.plateau_qps,
        "peak_qps": cold.law.peak_qps,
        "full_load_qps": full_load(cold.law.costs, cores=cold.law.cores),
        "most_load_qps": most_load(cold.law.costs, cores=cold.law.cores),
        "costs": {"method": METHOD, "cold": cold.told.pop("costs"), "warm": warm.pop("costs")},
        "echo": echo,
        **cold.told,
        **warm,
    }


async def _cold(service: Tested, shop: Shop, say: Say) -> _Cold:
    """The plateau, what an answer costs, and every load without a cache."""
    options = service.options
    questions = Questions(shop, seed=options.seed, sessions=options.sessions)
    await service.one(options.sweep_from, min(_WARM_UP_S, options.seconds), questions.new)
    plateau, sweep = await find_plateau(service, questions.new, say)
    plateau_qps = float(plateau["goodput_qps"])
    if not plateau_qps:
        raise StartError(f"bench overload: no complete answer within {options.budget_ms:g} ms, whatever was offered")
    say(f"plateau: {plateau_qps:,.1f} complete answers a second, {'' if plateau['reached'] else 'not '}reached")
    fallback = await cost_of_fallback(service, questions.shut_out, plateau_qps)
    scored = await cost_of_scored(service, questions.new, plateau_qps, fallback)
    if not fallback.cpu_s:
        raise StartError("bench overload: seconds: too short a run to tell what a fallback costs")
    law = _law(service, PROVISIONED * plateau_qps, plateau_qps, scored, None, fallback)
    say(f"CPU of an answer: scored {scored.cpu_s * 1e3:.2f} ms, fallback {fallback.cpu_s * 1e3:.3f} ms")
    steps = await scenes.loads(service, law, questions.new, say)
    told = {
        "plateau": plateau,
        "sweep": [law.row(step) for step in sweep],
        "costs": {"scored": scored.facts(), "fallback": fallback.facts()},
        "steps": steps,
        "step": await scenes.step_up_and_down(service, law, questions.new),
        "spike": await scenes.spike(service, law, questions.new),
    }
    (asked,) = questions.shut_out(1)
    answer = await service.calls[0](asked.message.SerializeToString(), timeout=options.deadline_ms / 1e3)
    return _Cold(law, told, fallback, answer)


async def _warm(service: Tested, shop: Shop, cold: Law, say: Say) -> dict[str, Any]:
    """What an answer costs with a cache, every load at the same peak, and the cache lost at twice of it."""
    options = service.options
    questions = Questions(shop, seed=options.seed + 1)
    await scenes.fill(service, questions, cold.peak_qps)
    hit = await cost_of_hit(service, scenes.repeated(questions), cold.peak_qps)
    fallback = await cost_of_fallback(service, questions.shut_out, cold.peak_qps)
    scored = await cost_of_scored(service, questions.new, cold.plateau_qps, fallback)
    law = _law(service, cold.peak_qps, cold.plateau_qps, scored, hit, fallback)
    say(f"CPU of an answer: scored {scored.cpu_s * 1e3:.2f} ms, hit {hit.cpu_s * 1e3:.3f} ms")
    return {
        "costs": {"scored": scored.facts(), "hit": hit.facts(), "fallback": fallback.facts()},
        "warm_steps": await scenes.loads(service, law, scenes.warm(questions, options.hit_share), say),
        "flush": await scenes.flush(service, law, questions),
    }


async def _echo(options: OverloadOptions, cold: _Cold, say: Say) -> dict[str, Any]:
    """A fallback beside a bare answer of the same bytes at the same rate on the same core."""
    async with (
        echoing(cold.answer, cpu=options.pin_service) as (target, pid),
        tested(target, pid, options) as server,
    ):
        questions = Questions(of_snapshots(options.snapshots), seed=options.seed)
        await server.one(cold.fallback.qps, min(_WARM_UP_S, options.seconds), questions.shut_out)
        step = await server.one(cold.fallback.qps, options.seconds, questions.shut_out)
    bare = step["service"]["cpu_s"] / max(1, step["answered"])
    most = max(cold.told["steps"], key=lambda row: float(row["load_times_peak"]))
    under_load = most["fallback_cpu_ms"]
    say(f"CPU of a bare echo: {bare * 1e3:.3f} ms; a fallback: {cold.fallback.cpu_s / bare:.2f} times that")
    return {
        "cpu_ms": round(bare * 1e3, 4),
        "qps": step["offered_qps"],
        "answer_bytes": len(cold.answer),
        "fallback_times_echo": round(cold.fallback.cpu_s / bare, 3),
        "fallback_times_echo_at_most_load": None if under_load is None else round(under_load / 1e3 / bare, 3),
        "generator_bound": step["generator_bound"],
    }


def _law(service: Tested, peak_qps: float, plateau_qps: float, scored: Cost, hit: Cost | None, fallback: Cost) -> Law:
    """Raises StartError where the costs are not such as a law could be made of."""
    try:
        costs = Costs(scored.cpu_s, hit.cpu_s if hit else 0.0, fallback.cpu_s)
    except ValueError as error:
        raise StartError(f"bench overload: CPU seconds of an answer, as measured: {error}") from error
    return Law(peak_qps, plateau_qps, costs, service.cores)


@asynccontextmanager
async def _serving(options: OverloadOptions, settings: dict[str, str], say: Say) -> AsyncIterator[Tested]:
    """A service of its own, with what the user sets and, above that, what the measurement needs."""
    off = {"scoring.quality": "off"} if "quality" in Scoring.model_fields else {}
    needed = [f"{key}={value}" for key, value in {**_SHUT, **settings}.items()]
    chosen = environment_of([f"{key}={value}" for key, value in off.items()]) | options.settings
    async with started(
        options.snapshots,
        settings=chosen | environment_of(needed),
        config=options.config,
        cpu=options.pin_service,
    ) as service:
        say(f"a service is ready: {', '.join(needed)}")
        async with tested(service.target, service.pid, options) as under_test:
            yield under_test
