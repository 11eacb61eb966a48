from __future__ import annotations

import pytest

from fallback.ladder import Reason
from services.feed.trace import Trace
from tests.clock import ManualClock


def test_stages_are_timed_in_order_of_entering_and_the_total_comes_last() -> None:
    clock = ManualClock(1.0)
    trace = Trace(clock)
    with trace.stage("session"):
        clock.advance(0.004)
    clock.advance(0.001)
    with trace.stage("slate"):
        clock.advance(0.002)
    assert [name for name, _ in trace.stages()] == ["session", "slate", "total"]
    assert [took for _, took in trace.stages()] == pytest.approx([4, 2, 7])


def test_a_part_of_a_stage_is_taken_out_of_it_so_that_stages_do_not_overlap() -> None:
    clock = ManualClock(1.0)
    trace = Trace(clock)
    with trace.stage("cache"):
        clock.advance(0.010)
        trace.took("queue", 2.0, out_of="cache")
        trace.took("retrieve", 5.0, out_of="cache")
    assert [name for name, _ in trace.stages()] == ["cache", "queue", "retrieve", "total"]
    assert [took for _, took in trace.stages()] == pytest.approx([3, 2, 5, 10])


def test_a_stage_that_fails_is_timed_too() -> None:
    clock = ManualClock(1.0)
    trace = Trace(clock)

    def fail() -> None:
        with trace.stage("cache"):
            clock.advance(0.5)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert dict(trace.stages())["cache"] == pytest.approx(500)


def test_reasons_are_kept_once_in_the_order_met() -> None:
    trace = Trace(lambda: 0.0)
    trace.note(Reason.NO_INDEX)
    trace.note(Reason.NO_CONTEXT, Reason.NO_INDEX)
    trace.note()
    assert trace.reasons == (Reason.NO_INDEX, Reason.NO_CONTEXT)
