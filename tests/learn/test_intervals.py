from __future__ import annotations

import numpy as np
import pytest

from indexer.learn.intervals import Bootstrap


def test_intervals_follow_users_not_questions() -> None:
    random = np.random.default_rng(1)
    taste = random.standard_normal(100)
    users = np.repeat(np.arange(100), 50)
    values = taste[users] + 0.01 * random.standard_normal(5000)
    by_user = Bootstrap(users, seed=1, draws=500).mean(values)
    by_question = Bootstrap(np.full(5000, -1), seed=1, draws=500).mean(values)
    assert by_user.mean == by_question.mean == pytest.approx(values.mean())
    assert by_user.high - by_user.low == pytest.approx(2 * 1.96 * taste.std() / 10, rel=0.15)
    assert by_user.high - by_user.low > 5 * (by_question.high - by_question.low)


def test_differences_and_lifts_are_paired() -> None:
    random = np.random.default_rng(2)
    users = np.repeat(np.arange(200), 3)
    theirs = random.random(600)
    bootstrap = Bootstrap(users, seed=1, draws=500)
    difference = bootstrap.difference(theirs + 0.1, theirs)
    assert (difference.mean, difference.low, difference.high) == pytest.approx((0.1, 0.1, 0.1))
    lift = bootstrap.lift(theirs * 1.2, theirs)
    assert (lift.mean, lift.low, lift.high) == pytest.approx((0.2, 0.2, 0.2))


def test_a_lift_over_nothing_is_not_finite_and_says_nothing() -> None:
    lift = Bootstrap(np.arange(20), seed=1, draws=50).lift(np.ones(20), np.zeros(20))
    assert not np.isfinite([lift.mean, lift.low, lift.high]).any()


@pytest.mark.parametrize("questions", [1, 400])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(questions: int) -> None:
    covered = 0
    for seed in range(200):
        values = np.repeat(np.random.default_rng(seed).standard_normal(60), questions // 60 + 1)
        users = np.repeat(np.arange(60), questions // 60 + 1)
        interval = Bootstrap(users, seed=seed, draws=200).mean(values)
        covered += interval.low <= 0 <= interval.high
    assert 0.88 <= covered / 200 <= 1.0
