from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.deadline import Deadline
from tests.clock import ManualClock
from tests.properties import examples

SECONDS = st.floats(-1, 10)


def test_the_earlier_of_budget_and_caller_holds_less_the_reserve() -> None:
    clock = ManualClock(100.0)
    assert Deadline.of(caller_s=None, budget_s=0.147, reserve_s=0.01, clock=clock).left() == pytest.approx(0.137)
    assert Deadline.of(caller_s=5, budget_s=0.147, reserve_s=0.01, clock=clock).left() == pytest.approx(0.137)
    assert Deadline.of(caller_s=0.05, budget_s=0.147, reserve_s=0.01, clock=clock).left() == pytest.approx(0.04)


def test_time_runs_out_at_the_reserve() -> None:
    clock = ManualClock(100.0)
    deadline = Deadline.of(caller_s=None, budget_s=1, reserve_s=0.25, clock=clock)
    clock.advance(0.5)
    assert deadline.left() == 0.25
    clock.advance(0.25)
    assert deadline.left() == 0


@examples(100)
@given(st.none() | SECONDS, st.floats(0, 10), st.floats(0, 1), st.floats(0, 20))
def test_what_is_left_is_never_negative_nor_above_the_budget(
    caller_s: float | None, budget_s: float, reserve_s: float, passed_s: float
) -> None:
    clock = ManualClock(100.0)
    deadline = Deadline.of(caller_s=caller_s, budget_s=budget_s, reserve_s=reserve_s, clock=clock)
    clock.advance(passed_s)
    assert 0 <= deadline.left() <= budget_s + 1e-9
