"""From samples to figures, the sweep, and what is said of a generator that was the bottleneck."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from services.bench.load import report
from services.bench.load.arrivals import Step, poisson
from services.bench.load.ask import Outcome
from services.bench.load.measure import bound_by, figures, over_time, step_figures
from services.bench.load.mix import Mix
from services.bench.load.plateau import Sweep, plateau_of, sweep
from services.bench.load.run import Boundary, Measured, Sample
from services.bench.load.usage import Usage

GOOD = Outcome(rung="RANKED", cache="MISS")


def sample(took_ms: float, outcome: Outcome = GOOD, lag_ms: float = 0.1) -> Sample:
    return Sample(lag_ms / 1e3, took_ms / 1e3, outcome)


def still(busy: float = 0.2) -> Sequence[Boundary]:
    return Boundary(0, 0, None), Boundary(10, 10 * busy, None)


def test_goodput_counts_complete_answers_within_the_budget_cached_and_computed_apart() -> None:
    late, degraded = sample(147.1), sample(5, Outcome(rung="RANKED", degraded=True, reasons=("no_neighbours",)))
    popular = sample(1, Outcome(rung="POPULAR", degraded=True, cache="UNUSED", reasons=("admission",)))
    refused = sample(1, Outcome(code="UNAVAILABLE"))
    hits = [sample(2, Outcome(rung="RANKED", cache=cache)) for cache in ("LOCAL", "SHARED", "JOINED")]
    samples = [sample(147.0), sample(30), late, degraded, popular, refused, *hits]
    step = step_figures(Step(1, 10), samples, still(), 147)
    assert (step["good"], step["goodput_qps"]) == (5, 0.5)
    assert (step["goodput_cached_qps"], step["goodput_computed_qps"]) == (0.3, 0.2)
    assert (step["sent"], step["answered"], step["non_ok"]) == (9, 8, 1)
    assert step["non_ok_by_code"] == {"UNAVAILABLE": 1}
    assert step["fallback_share"] == 2 / 8
    assert step["rung_share"] == {"RANKED": 7 / 8, "POPULAR": 1 / 8}
    assert step["reason_share"] == {"no_neighbours": 1 / 8, "admission": 1 / 8}
    assert step["cache_share"]["LOCAL"] == 1 / 8
    assert step["generator_bound"] is False


def test_latency_is_that_of_answers_and_what_ended_otherwise_is_told_beside_it() -> None:
    answers = [sample(took) for took in range(1, 101)]
    step = step_figures(Step(10, 10), [*answers, sample(500, Outcome(code="DEADLINE_EXCEEDED"))], still(), 147)
    assert step["latency_ms"]["p50"] == 50.5
    assert step["latency_ms"]["p99"] == pytest.approx(99.01)
    assert step["latency_ms"]["p99_9"] == pytest.approx(99.901)
    assert step["latency_ms_by_rung"]["RANKED"] == {"answers": 100, **step["latency_ms"]}
    assert step["ended_ms"]["max"] == 500


def test_stages_and_cpu_are_an_answers() -> None:
    timed = [sample(9, GOOD._replace(stages=(("queue", 2.0 * at), ("rerank", 1.0)))) for at in range(3)]
    ends = (Boundary(0, 0, Usage(1, 1, 0, 0, 0, 0, 0), 50), Boundary(10, 1, Usage(1.6, 1.9, 5, 3, 2, 6, 7), 56.9))
    step = step_figures(Step(1, 10), timed, ends, 147)
    assert step["stage_ms"]["queue"] == {"answers": 3, "p50": 2.0, "p99": 3.96}
    assert step["stage_ms"]["retrieve"] == {"answers": 0, "p50": None, "p99": None}
    assert step["service"]["cpu_ms_per_answer"] == 200
    assert step["service"]["cpu_ms_per_answer_with_children"] == 300
    assert step["others_cores"] == 0.5
    assert (step["service"]["rss"], step["service"]["rss_anon"], step["service"]["rss_file"]) == (5, 3, 2)


def test_a_step_without_any_answer_has_figures_nonetheless() -> None:
    step = step_figures(Step(1, 10), [sample(3, Outcome(code="UNAVAILABLE"))], still(), 147)
    assert (step["goodput_qps"], step["fallback_share"], step["latency_ms"]["p99"]) == (0, None, None)
    json.dumps(step_figures(Step(1, 10), [], still(), 147), allow_nan=False)


@pytest.mark.parametrize(
    ("lag_ms", "busy", "dropped", "said"),
    [
        (4.9, 0.89, 0, []),
        (5.1, 0.1, 0, ["lag p99 5.1 ms > 5 ms"]),
        (0.1, 0.9, 0, ["busy 90% of a core >= 90%"]),
        (0.1, 0.1, 7, ["7 not sent: too many outstanding"]),
    ],
)
def test_the_generator_says_what_makes_it_the_bottleneck(
    lag_ms: float, busy: float, dropped: int, said: list[str]
) -> None:
    assert bound_by(np.full(100, lag_ms), busy, dropped) == said


def test_windows_over_time_hold_every_arrival_once() -> None:
    plan = poisson([Step(50, 3), Step(250, 2, spike=True)], seed=1)
    samples = tuple(sample(5) for _ in plan.at)
    windows = over_time(Measured(plan, samples, ()))
    assert [window["from_s"] for window in windows] == [0, 1, 2, 3, 4]
    assert sum(window["offered_qps"] * window["seconds"] for window in windows) == len(plan.at)
    assert windows[4]["offered_qps"] > 3 * windows[0]["offered_qps"]


def test_a_bound_generator_is_said_in_table_and_picture(tmp_path: Path) -> None:
    plan = poisson([Step(50, 1), Step(100, 1)], seed=1)
    late = tuple(sample(9, lag_ms=20) for _ in plan.at)
    edges = tuple(Boundary(at, 0.1 * at, Usage(at, at, 2**30, 2**29, 2**29, 0, 0), 1.9 * at) for at in (0, 1, 2))
    measured = Measured(plan, late, edges)
    made = {
        **report.head("feedline bench load"),
        "items": 10,
        "synthetic": True,
        "budget_ms": 147.0,
        "mix": Mix().model_dump(),
        "users_with_a_history": 0,
        "steps": figures(measured),
        "over_time": over_time(measured),
    }
    said = "the generator was itself the bottleneck in 2 of 2 steps"
    assert any(said in note for note in report.notes(made))
    assert "10 synthetic items" in report.notes(made)[0]
    assert report.notes(made)[1] == "the service at the end: 1,024 MiB resident, 512 MiB of it its own"
    assert report.notes(made)[-2] == "!the machine was not quiet: other processes used up to 0.8 cores meanwhile"
    report.picture(made, tmp_path / "a.svg")
    assert said in (tmp_path / "a.svg").read_text()
    assert "generator-bound" in (tmp_path / "a.svg").read_text()
    printed = StringIO()
    Console(file=printed, width=80).print(report.table(made))
    assert [line.split()[-1] for line in printed.getvalue().splitlines()[-2:]] == ["BOUND", "BOUND"]


async def swept(capacity: float, bound_from: float = 1e9) -> list[dict[str, Any]]:
    async def measure(step: Step) -> dict[str, Any]:
        bound = step.qps >= bound_from
        return {
            "qps": step.qps,
            "offered_qps": step.qps,
            "goodput_qps": min(step.qps, capacity),
            "fallback_share": max(0.0, 1 - capacity / step.qps),
            "latency_ms": {"p99": 10.0},
            "generator": {"busy": 0.95 if bound else 0.1},
            "generator_bound": bound,
        }

    return await sweep(measure, Sweep(start=10, growth=2, seconds=1, patience=2, stop=10_000))


async def test_the_sweep_ends_where_more_load_brings_no_more() -> None:
    steps = await swept(capacity=100)
    assert [step["qps"] for step in steps] == [10, 20, 40, 80, 160, 320, 640]
    assert plateau_of(steps) == {
        "goodput_qps": 100, "offered_qps": 160, "fallback_share": 0.375, "p99_ms": 10.0, "reached": True
    }  # fmt: skip


async def test_a_plateau_that_the_generator_could_not_reach_is_not_called_reached() -> None:
    steps = await swept(capacity=1000, bound_from=80)
    assert steps[-1]["qps"] == 80
    assert plateau_of(steps)["reached"] is False
