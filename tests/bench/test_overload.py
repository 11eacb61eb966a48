"""`feedline bench overload`: its arithmetic, its questions, and one small run on real services."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from protos import feed_pb2
from services import cli
from services.bench.load.ask import Outcome
from services.bench.load.mix import Asked
from services.bench.load.shop import of_snapshots
from services.bench.overload import report, scenes, service
from services.bench.overload.costs import Cost, scored_alone
from services.bench.overload.law import Law
from services.bench.overload.options import LOADS, OverloadOptions, parse_loads
from services.bench.overload.questions import REPEATED, Questions
from services.bench.overload.retrying import Retrying
from services.bench.overload.settled import seconds_until_settled
from services.errors import StartError
from services.planner.capacity import Costs
from tests.snapshots import Shop, publish_shop

LAW = Law(peak_qps=150, plateau_qps=200, costs=Costs(0.005, 0.001, 0.0005), cores=1)


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("overload") / "snapshots"
    publish_shop(root, Shop())
    return root


def measured_step(**more: Any) -> dict[str, Any]:
    """Twice the peak of LAW for 10 s, a core full: as many fallbacks as the law says."""
    return {
        "qps": 300.0,
        "offered_qps": 300.0,
        "seconds": 10.0,
        "answered": 3000,
        "fallback_share": 0.37037,
        "cache_share": {"OFF": 1.0},
        "latency_ms": {"p50": 30.0, "p99": 90.0},
        "fallback_ms": {"p50": 2.0, "p99": 9.0},
        "latency_ms_by_rung": {"POPULAR": {"answers": 1111, "p50": 2.0, "p95": 5.0, "p99": 9.0}},
        "goodput_qps": 188.9,
        "non_ok": 0,
        "non_ok_by_code": {},
        "reason_share": {"admission": 0.37037},
        "stage_ms": {"queue": {"answers": 1889, "p50": 8.0, "p99": 20.0}},
        "service": {
            "cpu_s": 9.9,
            "cpu_s_with_children": 10.0,
            "cores": 0.99,
            "cpu_ms_per_answer_with_children": 3.333,
        },
        "others_cores": 0.02,
        "generator_dropped": 0,
        "generator_bound": False,
        "generator_bound_by": [],
    } | more


def test_a_row_lays_both_laws_beside_what_was_measured() -> None:
    row = LAW.row(measured_step())
    assert row["load_times_peak"] == 2
    assert row["law_fallback_share"] == pytest.approx((0.005 - 1 / 300) / 0.0045, abs=1e-5)
    assert row["law_error_points"] == 0
    assert row["simple_law_fallback_share"] == pytest.approx(1 / 3, abs=1e-5)
    assert row["fallback_cpu_ms"] == pytest.approx(0.5, abs=0.01)
    assert (row["cache_share"], row["service_cores"]) == (0, 1.0)
    assert row["latency_ms_by_rung"]["POPULAR"] == {"answers": 1111, "p50": 2.0, "p99": 9.0}


def test_hits_and_single_flight_waiters_count_as_hits() -> None:
    row = LAW.row(measured_step(cache_share={"LOCAL": 0.5, "JOINED": 0.1, "SHARED": 0.1, "MISS": 0.2, "STALE": 0.1}))
    assert row["cache_share"] == 0.7
    assert row["law_fallback_share"] == 0


def test_a_step_in_which_nobody_was_answered_has_a_row() -> None:
    nothing = {"p50": None, "p99": None}
    service = {"cpu_s": 0.0, "cpu_s_with_children": 0.0, "cores": 0.0, "cpu_ms_per_answer_with_children": None}
    row = LAW.row(measured_step(answered=0, fallback_share=None, cache_share={}, latency_ms=nothing, service=service))
    assert (row["fallback_share"], row["law_error_points"], row["fallback_cpu_ms"]) == (None, None, None)


def test_what_fell_back_is_taken_off_the_cost_of_what_was_scored() -> None:
    step = measured_step(answered=1000, fallback_share=0.1, service={"cpu_s_with_children": 4.55})
    cost = scored_alone(step, Cost(0.0005, 100, 1000, 1.0))
    assert cost.cpu_s == pytest.approx(0.005)
    assert (cost.answers, cost.purity) == (900, 0.9)


@pytest.mark.parametrize(("until", "expected"), [(0.0, 0.0), (5.0, 0.0), (6.0, 1.0), (8.25, 3.3), (100.0, None)])
def test_a_service_is_settled_with_the_first_second_of_few_fallbacks(until: float, expected: float | None) -> None:
    at = np.arange(0, 20, 0.01)
    assert seconds_until_settled(at, at < until, since=5.0) == expected


def test_silence_is_not_settled() -> None:
    assert seconds_until_settled(np.zeros(0), np.zeros(0, np.bool_), since=0.0) is None
    at = np.array([0.0, 1.0, 9.0, 9.5, 10.0])
    assert seconds_until_settled(at, np.array([True, True, False, False, False]), since=1.5) == 6.6


async def test_a_client_asks_again_until_it_has_what_it_wanted_or_is_tired() -> None:
    async def asked(answers: Sequence[Outcome]) -> tuple[Outcome, int]:
        left = iter(answers)

        async def ask(index: int) -> Outcome:
            return next(left)

        retrying = Retrying(ask, most=2, seed=1)
        return await retrying(0), retrying.again

    good, fallback, failed = Outcome(), Outcome(degraded=True), Outcome(code="UNAVAILABLE")
    assert await asked([good]) == (good, 0)
    assert await asked([failed, good]) == (good, 1)
    assert await asked([fallback, failed, fallback]) == (fallback, 2)


def test_new_questions_are_of_a_tenant_of_their_own_and_kept_ones_of_one(snapshots: Path) -> None:
    questions = Questions(of_snapshots(snapshots), seed=1)
    new = questions.new(300)
    assert len({one.message.tenant for one in [*new, *questions.new(300)]}) == 600
    assert not any(one.message.session_id or one.message.user_id for one in new)
    assert all(one.message.recent_events for one in new)
    kept = {_said(one) for one in questions.each_repeated("a")}
    assert len(questions.each_repeated("a")) == REPEATED
    assert {_said(one) for one in questions.repeated(1000, "a")} <= kept
    assert not {_said(one) for one in questions.repeated(1000, "b")} & kept
    mixed = questions.mixed(2000, 0.8, "a")
    assert sum(_said(one) in kept for one in mixed) / len(mixed) == pytest.approx(0.8, abs=0.03)


def test_requests_that_find_the_door_shut_are_prefetches_and_sessions_are_named_on_request(snapshots: Path) -> None:
    questions = Questions(of_snapshots(snapshots), seed=1, sessions=True)
    assert all(one.message.priority == feed_pb2.PRIORITY_PREFETCH for one in questions.shut_out(10))
    assert len({one.message.session_id for one in questions.new(10)} - {""}) == 10


def _said(one: Asked) -> bytes:
    return one.message.SerializeToString(deterministic=True)


def test_loads_are_read_and_a_wrong_one_is_named() -> None:
    assert parse_loads("0.5, 1,10") == (0.5, 1, 10)
    for wrong in ("0", "-1", "nan", "inf", "x", ""):
        with pytest.raises(StartError, match=f"loads: '{wrong}'"):
            parse_loads(f"1,{wrong}")


def test_steps_at_twice_the_peak_and_above_last_until_there_are_enough_answers(tmp_path: Path) -> None:
    options = OverloadOptions(tmp_path, seconds=10, answers=6000)
    assert [options.lasting(times, times * 150) for times in (1.0, 2.0, 10.0)] == [10, 20, 10]
    assert options.loads == LOADS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_small_run_has_the_form_that_is_promised_and_nobody_sees_an_error(
    snapshots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_BEFORE_S", 0.4), ("_SPIKE_S", 0.2), ("_AFTER_S", 1.5)):
        monkeypatch.setattr(scenes, name, seconds)
    monkeypatch.setattr(service, "_SETTLE_S", 0.05)
    plot = tmp_path / "overload.svg"
    done = CliRunner().invoke(
        cli.app,
        [
            "bench", "overload", "--snapshots", str(snapshots), "--seconds", "0.4", "--loads", "0.5,1.5",
            "--sweep-from", "200", "--deadline-ms", "20000", "--plot", str(plot), "--json",
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    measured = json.loads(done.stdout)
    assert measured["peak_qps"] == pytest.approx(0.75 * measured["plateau_qps"])
    assert [row["load_times_peak"] for row in measured["steps"]] == [0.5, 1.5]
    assert [row["load_times_peak"] for row in measured["warm_steps"]] == [0.5, 1.5]
    told = [measured[name] for name in ("step", "spike", "flush")]
    for scene in told:
        assert len(scene["steps"]) == 3
        assert {"seconds_until_settled", "load_dropped_at_s", "over_time"} <= set(scene)
    for row in [*measured["steps"], *measured["warm_steps"], *(row for scene in told for row in scene["steps"])]:
        assert row["non_ok"] == 0, row["non_ok_by_code"]
        assert {
            "offered_qps", "fallback_share", "law_fallback_share", "simple_law_fallback_share", "p50_ms", "p99_ms",
            "fallback_p99_ms", "goodput_qps", "service_cores",
        } <= set(row)  # fmt: skip
    assert all(row["cache_share"] == 0 for row in measured["steps"])
    assert measured["warm_steps"][0]["cache_share"] > 0.5
    assert 0 < measured["full_load_qps"] < measured["most_load_qps"]
    for name in ("scored", "fallback"):
        assert measured["costs"]["cold"][name]["cpu_ms"] > 0
    assert measured["costs"]["warm"]["hit"]["purity"] > 0.5
    assert measured["costs"]["cold"]["fallback"]["purity"] == 1
    assert measured["echo"]["cpu_ms"] > 0
    assert measured["echo"]["answer_bytes"] > 100
    drawn = plot.read_text()
    for heading in ("Fallback without a cache", "Fallback with a warm cache", "p99 from", "Goodput", "Ten times"):
        assert heading in drawn
    assert "NaN" not in drawn
    assert any("plateau" in note for note in report.notes(measured))
