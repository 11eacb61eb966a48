"""From samples to figures: pure arithmetic. Milliseconds, seconds, bytes, shares of 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from services.bench.load.arrivals import Step
from services.bench.load.ask import OK, RANKED
from services.bench.load.run import DROPPED, Boundary, Measured, Sample

Figures = dict[str, Any]
BUDGET_MS = 147.0
LAG_BOUND_MS = 5.0
BUSY_BOUND = 0.9
_QUANTILES = {"p50": 50.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
CACHED = frozenset({"LOCAL", "SHARED", "JOINED"})
"""Outcomes of the cache that spared a computation of its own."""
_STAGES = ("queue", "retrieve", "rerank")


def figures(measured: Measured, *, budget_ms: float = BUDGET_MS) -> list[Figures]:
    """The figures of each step that counts, in order. A request belongs to the step in which it was to leave."""
    found = []
    for place, step in enumerate(measured.plan.steps):
        if step.counted:
            samples = [measured.samples[at] for at in np.flatnonzero(measured.plan.step == place)]
            found.append(step_figures(step, samples, measured.boundaries[place : place + 2], budget_ms))
    return found


def step_figures(step: Step, samples: Sequence[Sample], between: Sequence[Boundary], budget_ms: float) -> Figures:
    """The figures of one step; `between`: the boundaries at which it begins and ends.

    Latency: of answers, from the intended moment to the last byte; `ended_ms` takes in what ended without one (a
    deadline that passed counts with the time it took: a lower bound). `goodput_qps`: complete answers of two stages,
    not degraded, within the budget, a second. Shares are of the answers. `others_cores`: what processes that are
    neither generator nor service used meanwhile; on a quiet machine about 0.
    """
    sent = [one for one in samples if one.outcome.code != DROPPED]
    answers = [one for one in sent if one.outcome.code == OK]
    good = [one for one in answers if is_good(one, budget_ms)]
    cached = sum(one.outcome.cache in CACHED for one in good)
    usage = _usage(between, len(answers))
    lag = np.array([one.lag for one in samples]) * 1e3
    bound = bound_by(lag, usage["generator_busy"], len(samples) - len(sent))
    return {
        "qps": step.qps,
        "seconds": step.seconds,
        "spike": step.spike,
        "offered": len(samples),
        "offered_qps": round(len(samples) / step.seconds, 2),
        "sent": len(sent),
        "generator_dropped": len(samples) - len(sent),
        "answered": len(answers),
        "non_ok": len(sent) - len(answers),
        "non_ok_by_code": _counts(one.outcome.code for one in sent if one.outcome.code != OK),
        "latency_ms": quantiles([one.took * 1e3 for one in answers]),
        "latency_ms_by_rung": _by(answers, lambda one: one.outcome.rung),
        "ended_ms": quantiles([one.took * 1e3 for one in sent]),
        "good": len(good),
        "goodput_qps": round(len(good) / step.seconds, 2),
        "goodput_cached_qps": round(cached / step.seconds, 2),
        "goodput_computed_qps": round((len(good) - cached) / step.seconds, 2),
        "fallback_share": _share(sum(one.outcome.degraded for one in answers), len(answers)),
        "rung_share": _shares(Counter(one.outcome.rung for one in answers), len(answers)),
        "reason_share": _shares(Counter(why for one in answers for why in one.outcome.reasons), len(answers)),
        "cache_share": _shares(Counter(one.outcome.cache for one in answers), len(answers)),
        "stage_ms": _stages(answers),
        "answer_bytes": round(float(np.mean([one.outcome.size for one in answers]))) if answers else None,
        "service": usage["service"],
        "others_cores": usage["others_cores"],
        "generator": {
            "busy": usage["generator_busy"],
            "lag_p50_ms": _at(lag, 50),
            "lag_p99_ms": _at(lag, 99),
            "lag_max_ms": _at(lag, 100),
        },
        "generator_bound": bool(bound),
        "generator_bound_by": bound,
    }


def is_good(sample: Sample, budget_ms: float) -> bool:
    """Whether it is a complete answer of two stages within the budget, from the intended moment on."""
    outcome = sample.outcome
    whole = outcome.code == OK and outcome.rung == RANKED and not outcome.degraded
    return whole and sample.took * 1e3 <= budget_ms


def bound_by(lag_ms: np.ndarray[Any, np.dtype[np.float64]], busy: float | None, dropped: int) -> list[str]:
    """What makes the generator itself the bottleneck, in words; nothing where it was none."""
    found = []
    if len(lag_ms) and float(np.percentile(lag_ms, 99)) > LAG_BOUND_MS:
        found.append(f"lag p99 {np.percentile(lag_ms, 99):.1f} ms > {LAG_BOUND_MS:g} ms")
    if busy is not None and busy >= BUSY_BOUND:
        found.append(f"busy {busy:.0%} of a core >= {BUSY_BOUND:.0%}")
    if dropped:
        found.append(f"{dropped} not sent: too many outstanding")
    return found


def quantiles(milliseconds: Sequence[float]) -> dict[str, float | None]:
    """p50, p95, p99, p99_9 and max, linear between neighbours; None where there are no values."""
    values = np.asarray(milliseconds, np.float64)
    return {name: _at(values, at) for name, at in _QUANTILES.items()} | {"max": _at(values, 100)}


def over_time(measured: Measured, *, budget_ms: float = BUDGET_MS, windows: int = 60) -> list[Figures]:
    """What happened in each of up to `windows` equal parts (1 s at least) of the whole run, warm-up included."""
    starts = measured.plan.starts
    count = max(1, min(windows, int(starts[-1])))
    edges = np.linspace(0.0, starts[-1], count + 1)
    place = np.clip(np.searchsorted(edges, measured.plan.at, side="right") - 1, 0, count - 1)
    rows = []
    for window in range(count):
        inside = [measured.samples[at] for at in np.flatnonzero(place == window)]
        answers = [one for one in inside if one.outcome.code == OK]
        seconds = float(edges[window + 1] - edges[window])
        rows.append(
            {
                "from_s": round(float(edges[window]), 3),
                "seconds": round(seconds, 3),
                "offered_qps": round(len(inside) / seconds, 2),
                "goodput_qps": round(sum(is_good(one, budget_ms) for one in inside) / seconds, 2),
                "non_ok": sum(one.outcome.code not in (OK, DROPPED) for one in inside),
                "fallback_share": _share(sum(one.outcome.degraded for one in answers), len(answers)),
                "p50_ms": _at(np.array([one.took * 1e3 for one in answers]), 50),
                "p99_ms": _at(np.array([one.took * 1e3 for one in answers]), 99),
            }
        )
    return rows


def _usage(between: Sequence[Boundary], answered: int) -> Figures:
    before, after = between
    wall = after.wall_s - before.wall_s
    busy = round((after.own_cpu_s - before.own_cpu_s) / wall, 4) if wall > 0 else None
    if before.service is None or after.service is None:
        return {"generator_busy": busy, "service": None, "others_cores": None}
    used, tree = (
        after.service.cpu_s - before.service.cpu_s,
        after.service.tree_cpu_s - before.service.tree_cpu_s,
    )
    service = {
        "cpu_s": round(used, 3),
        "cpu_s_with_children": round(tree, 3),
        "cpu_ms_per_answer": round(used * 1e3 / answered, 4) if answered else None,
        "cpu_ms_per_answer_with_children": round(tree * 1e3 / answered, 4) if answered else None,
        "cores": round(used / wall, 3) if wall > 0 else None,
        "rss": after.service.rss,
        "rss_anon": after.service.rss_anon,
        "rss_file": after.service.rss_file,
        "rss_peak": after.service.rss_peak,
        "rss_with_children": after.service.tree_rss,
    }
    others = after.machine_cpu_s - before.machine_cpu_s - tree - (after.own_cpu_s - before.own_cpu_s)
    return {
        "generator_busy": busy,
        "service": service,
        "others_cores": round(max(0.0, others) / wall, 3) if wall > 0 else None,
    }


def _by(answers: Sequence[Sample], key: Callable[[Sample], str]) -> dict[str, Figures]:
    groups: dict[str, list[float]] = {}
    for one in answers:
        groups.setdefault(key(one), []).append(one.took * 1e3)
    return {name: {"answers": len(took), **quantiles(took)} for name, took in sorted(groups.items())}


def _stages(answers: Sequence[Sample]) -> dict[str, Figures]:
    took: dict[str, list[float]] = {name: [] for name in _STAGES}
    for one in answers:
        for stage, milliseconds in one.outcome.stages:
            if stage in took:
                took[stage].append(milliseconds)
    return {
        name: {"answers": len(values), "p50": _at(np.array(values), 50), "p99": _at(np.array(values), 99)}
        for name, values in took.items()
    }


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _shares(counts: Counter[str], whole: int) -> dict[str, float | None]:
    return {name: _share(count, whole) for name, count in counts.most_common()}


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 5) if whole else None


def _at(values: np.ndarray[Any, np.dtype[np.float64]], quantile: float) -> float | None:
    return round(float(np.percentile(values, quantile)), 3) if len(values) else None
