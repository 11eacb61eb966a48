from __future__ import annotations

import random

import pytest

from services.retry import Backoff, RetryBudget


def test_pauses_double_up_to_the_longest_and_are_jittered_from_nothing() -> None:
    rng, backoff = random.Random(1), Backoff(first_s=0.02, longest_s=0.1)
    for attempt, bound in enumerate((0.02, 0.04, 0.08, 0.1, 0.1), start=1):
        pauses = [backoff.pause_s(attempt, rng) for _ in range(2000)]
        assert 0 <= min(pauses) < 0.05 * bound
        assert 0.95 * bound < max(pauses) <= bound


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5])
def test_however_many_fail_attempts_more_are_at_most_the_ratio_and_the_burst(ratio: float) -> None:
    budget = RetryBudget(ratio, burst=5)
    more = 0
    for _ in range(10_000):
        budget.called()
        while budget.take():
            more += 1
    assert more == pytest.approx(10_000 * ratio + 5, abs=1)


def test_what_is_not_used_is_kept_up_to_the_burst() -> None:
    budget = RetryBudget(0.1, burst=5)
    for _ in range(1000):
        budget.called()
    assert [budget.take() for _ in range(6)] == [True] * 5 + [False]
    for _ in range(10):
        budget.called()
    assert budget.take()
