from __future__ import annotations

import pytest

from cache.breaker import Breaker, BreakerState, Permit
from tests.clock import ManualClock


def admitted(breaker: Breaker) -> Permit:
    permit = breaker.admit()
    assert permit is not None
    return permit


def test_one_failure_opens_and_nothing_passes_until_the_pause_is_over() -> None:
    clock = ManualClock(0)
    breaker = Breaker(clock, first_pause_s=0.25)

    admitted(breaker).failed()

    clock.advance(0.249)
    assert breaker.admit() is None
    clock.advance(0.001)
    assert breaker.admit() is not None


def test_only_one_probe_passes() -> None:
    clock = ManualClock(0)
    breaker = Breaker(clock)
    admitted(breaker).failed()
    clock.advance(1)

    admitted(breaker)

    assert breaker.state is BreakerState.HALF_OPEN
    assert breaker.admit() is None


def test_failed_probes_double_the_pause_up_to_its_limit() -> None:
    clock = ManualClock(0)
    breaker = Breaker(clock, first_pause_s=0.25, longest_pause_s=1.5)
    admitted(breaker).failed()

    pauses = []
    for _ in range(5):
        began = clock.now
        while (permit := breaker.admit()) is None:
            clock.advance(0.125)
        pauses.append(clock.now - began)
        permit.failed()

    assert pauses == [0.25, 0.5, 1.0, 1.5, 1.5]


def test_a_successful_probe_closes_and_forgets_the_pauses() -> None:
    clock = ManualClock(0)
    breaker = Breaker(clock, first_pause_s=0.25)
    for _ in range(3):
        admitted(breaker).failed()
        clock.advance(5)
    admitted(breaker).succeeded()
    assert breaker.state is BreakerState.CLOSED

    admitted(breaker).failed()

    clock.advance(0.25)
    assert breaker.admit() is not None


def test_a_hundred_calls_that_fail_together_count_once() -> None:
    clock = ManualClock(0)
    breaker = Breaker(clock, first_pause_s=0.25)
    permits = [admitted(breaker) for _ in range(100)]

    for permit in permits:
        clock.advance(0.001)
        permit.failed()

    assert breaker.times_opened == 1
    clock.advance(0.25 - 0.099)
    assert breaker.admit() is not None


def test_an_old_success_does_not_close_an_open_breaker() -> None:
    breaker = Breaker(ManualClock(0))
    early = admitted(breaker)
    admitted(breaker).failed()

    early.succeeded()

    assert breaker.state is BreakerState.OPEN


def test_after_a_cancelled_probe_the_next_call_is_the_probe() -> None:
    clock = ManualClock(0)
    breaker = Breaker(clock)
    admitted(breaker).failed()
    clock.advance(1)

    admitted(breaker).ignored()

    assert breaker.admit() is not None
    assert breaker.admit() is None


def test_failures_in_a_row_are_needed_when_so_set() -> None:
    breaker = Breaker(ManualClock(0), failures_to_open=3)
    for outcome in ("failed", "failed", "succeeded", "failed", "failed"):
        getattr(admitted(breaker), outcome)()
    assert breaker.times_opened == 0

    admitted(breaker).failed()

    assert breaker.state is BreakerState.OPEN


def test_a_permit_ends_once() -> None:
    permit = admitted(Breaker(ManualClock(0)))
    permit.succeeded()

    with pytest.raises(RuntimeError):
        permit.failed()


def test_impossible_settings_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="failures_to_open"):
        Breaker(failures_to_open=0)
    with pytest.raises(ValueError, match="first_pause_s"):
        Breaker(first_pause_s=3, longest_pause_s=2)
