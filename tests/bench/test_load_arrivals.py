"""When requests leave: steps, spikes, given moments."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from services.bench.load.arrivals import Step, given, parse_steps, poisson, read_moments
from services.errors import StartError


def test_steps_are_read_and_a_spike_multiplies_the_last_rate_that_was_none() -> None:
    assert parse_steps("50:10, 5x:3,2x:1,100:0.5") == [
        Step(50, 10),
        Step(250, 3, spike=True),
        Step(100, 1, spike=True),
        Step(100, 0.5),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "step 1"),
        ("50", "step 1: '50'"),
        ("50:10,0:5", "step 2: '0:5'"),
        ("50:10,-1:5", "step 2"),
        ("nan:5", "step 1"),
        ("inf:5", "step 1"),
        ("5x:3", "a spike is a multiple of a step before it"),
        ("1e9:1e9", "more than 10,000,000 requests"),
    ],
)
def test_a_wrong_step_is_named(text: str, said: str) -> None:
    with pytest.raises(StartError, match=re.escape(said)):
        parse_steps(text)


def test_poisson_arrivals_are_the_same_for_a_seed_and_independent_within_a_step() -> None:
    plan = poisson([Step(200, 50), Step(1000, 10)], seed=3)
    again = poisson([Step(200, 50), Step(1000, 10)], seed=3)
    assert plan.at.tobytes() == again.at.tobytes()
    assert plan.at.tobytes() != poisson([Step(200, 50), Step(1000, 10)], seed=4).at.tobytes()
    assert np.all(np.diff(plan.at) >= 0)
    first = plan.at[plan.step == 0]
    assert first.max() < 50 <= plan.at[plan.step == 1].min()
    assert len(first) == pytest.approx(10_000, abs=4 * 100)
    gaps = np.diff(first) * 200  # Exponential: the deviation is the mean.
    assert gaps.std() == pytest.approx(1, abs=0.05)
    assert plan.starts == [0, 50, 60]


def test_given_moments_begin_at_zero_and_keep_their_distances(tmp_path: Path) -> None:
    path = tmp_path / "moments"
    path.write_text("# at night\n107.5\n\n100  # first\n105\n")
    plan = given(read_moments(path))
    assert plan.at.tolist() == [0, 5, 7.5]
    assert plan.steps == (Step(3 / 11.25, 11.25),)


@pytest.mark.parametrize(("text", "said"), [("1\nx\n", "line 2"), ("nan", "line 1"), ("\n", "at least one moment")])
def test_a_wrong_moment_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "moments"
    path.write_text(text)
    with pytest.raises(StartError, match=said):
        read_moments(path)
