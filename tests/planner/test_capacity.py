"""The laws of overload, against a worked figure and against the balance that they state."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.planner.capacity import Costs, fallback_share, full_load, most_load, simple_fallback_share

COSTS = Costs(scored=0.004, hit=0.001, fallback=0.0005)
SHARES = st.floats(0, 1)
LOADS = st.floats(1, 10_000)


def test_at_twice_a_peak_provisioned_at_three_quarters_a_third_falls_back() -> None:
    """The figure worked out beforehand: 2x the peak, C = 1.33 x the peak, no cache: "about one third"."""
    peak = 300.0
    assert simple_fallback_share(capacity=1.33, load=2.0) == pytest.approx(1 / 3, abs=0.002)
    assert simple_fallback_share(capacity=peak / 0.75, load=2 * peak) == pytest.approx(1 / 3)


def test_hits_take_load_off() -> None:
    assert simple_fallback_share(capacity=400, load=1000, hit_share=0.5) == pytest.approx(0.1)
    assert simple_fallback_share(capacity=400, load=1000, hit_share=0.9) == 0


def test_with_hits_and_fallbacks_that_cost_nothing_both_laws_are_one() -> None:
    free = Costs(scored=0.0025, hit=0, fallback=0)
    for load in (100, 400, 401, 800, 4000):
        for hits in (0.0, 0.4, 1.0):
            simple = simple_fallback_share(capacity=400, load=load, hit_share=hits)
            assert fallback_share(free, cores=1, load=load, hit_share=hits) == pytest.approx(simple)


def test_fallbacks_that_cost_make_more_fall_back() -> None:
    assert fallback_share(COSTS, cores=1, load=500) == pytest.approx((0.004 - 1 / 500) / 0.0035)
    assert fallback_share(COSTS, cores=1, load=500) > simple_fallback_share(capacity=250, load=500)
    assert fallback_share(COSTS, cores=2, load=500) == 0


@given(load=LOADS, hits=SHARES, cores=st.floats(0.5, 64))
def test_between_its_bounds_the_law_spends_exactly_what_there_is(load: float, hits: float, cores: float) -> None:
    share = fallback_share(COSTS, cores=cores, load=load, hit_share=hits)
    spent = load * ((1 - hits - share) * COSTS.scored + hits * COSTS.hit + share * COSTS.fallback)
    assert 0 <= share <= 1 - hits
    if 0 < share < 1 - hits:
        assert spent == pytest.approx(cores)
    elif share == 0:
        assert spent <= cores * (1 + 1e-9) or hits == 1
    else:
        assert spent >= cores * (1 - 1e-9)


@given(load=LOADS, more=LOADS, hits=SHARES)
def test_more_load_never_means_fewer_fallbacks(load: float, more: float, hits: float) -> None:
    before = fallback_share(COSTS, cores=1, load=load, hit_share=hits)
    assert fallback_share(COSTS, cores=1, load=load + more, hit_share=hits) >= before - 1e-12


def test_where_falling_back_begins_and_where_even_that_is_too_much() -> None:
    full, most = full_load(COSTS, cores=1), most_load(COSTS, cores=1)
    assert (full, most) == pytest.approx((250, 2000))
    assert fallback_share(COSTS, cores=1, load=full) == 0
    assert fallback_share(COSTS, cores=1, load=most) == pytest.approx(1)
    assert fallback_share(COSTS, cores=1, load=10 * most) == 1
    assert fallback_share(COSTS, cores=1, load=10 * most, hit_share=0.4) == 0.6
    assert full_load(COSTS, cores=1, hit_share=1) == most_load(COSTS, cores=1, hit_share=1) == pytest.approx(1000)


def test_zero_is_a_value() -> None:
    assert simple_fallback_share(capacity=0, load=10) == 1
    assert simple_fallback_share(capacity=10, load=0) == 0
    assert fallback_share(COSTS, cores=0, load=10) == 1
    assert fallback_share(COSTS, cores=1, load=0) == 0
    assert most_load(Costs(0.004, 0, 0), cores=1) == math.inf


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ((0.001, 0.0, 0.001), r"scored: expected more than fallback \(0.001\), got 0.001"),
        ((0.001, 0.0, 0.002), "scored: expected more than fallback"),
        ((math.nan, 0.0, 0.001), "scored: expected a finite number"),
        ((math.inf, 0.0, 0.001), "scored: expected a finite number"),
        ((0.004, -1.0, 0.001), "hit: expected a finite number of at least 0, got -1"),
        ((0.004, 0.0, -0.001), "fallback: expected"),
    ],
)
def test_costs_of_which_no_law_can_be_made_are_named(costs: tuple[float, float, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Costs(*costs)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("cores", -1.0), ("load", -1.0), ("load", math.nan), ("hit_share", 1.1), ("hit_share", -0.1)],
)
def test_an_argument_that_cannot_be_is_named(argument: str, value: float) -> None:
    given_ = {"cores": 1.0, "load": 100.0, "hit_share": 0.0, argument: value}
    with pytest.raises(ValueError, match=f"^{argument}: expected"):
        fallback_share(COSTS, **given_)
    with pytest.raises(ValueError, match=f"^{argument.replace('cores', 'capacity')}: expected"):
        simple_fallback_share(capacity=given_["cores"], load=given_["load"], hit_share=given_["hit_share"])
