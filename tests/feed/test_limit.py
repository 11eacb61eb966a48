from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.feed.limit import AdaptiveLimit, FixedLimit, LimitSpec
from tests.properties import examples

SPEC = LimitSpec(ceiling=32, floor=2)


def interval(limit: AdaptiveLimit, start: float, wait_s: float, *, used: float, count: int = 10) -> float:
    """Waits that are spread over a little more than one interval; the moment after it."""
    limit.used(used)
    for at in range(count):
        limit.waited(wait_s, start + at * 0.11 / (count - 1))
    return start + 0.11


def test_long_waits_shrink_the_limit_by_a_tenth() -> None:
    limit = AdaptiveLimit(SPEC, 20)
    now = interval(limit, 0.0, 0.013, used=20)
    assert limit.value == 18
    interval(limit, now, 0.013, used=1)
    assert limit.value == 18 * 0.9


def test_a_limit_that_is_used_while_waits_are_short_grows_by_one() -> None:
    limit = AdaptiveLimit(SPEC, 10)
    now = interval(limit, 0.0, 0.012, used=8)
    assert limit.value == 11
    interval(limit, now, 0.0, used=8.7)
    assert limit.value == 11, "less than 80 % of it was in use"


def test_few_waits_say_nothing_until_there_are_enough() -> None:
    limit = AdaptiveLimit(SPEC, 10)
    now = interval(limit, 0.0, 1.0, used=10, count=4)
    assert limit.value == 10
    limit.waited(1.0, now)
    assert limit.value == 9


def test_a_short_time_says_nothing() -> None:
    limit = AdaptiveLimit(SPEC, 10)
    for _ in range(1000):
        limit.waited(1.0, 5.0)
    assert limit.value == 10


def test_after_a_wedge_the_limit_is_at_the_floor_and_comes_back() -> None:
    limit = AdaptiveLimit(SPEC, 32)
    now = 0.0
    for _ in range(60):
        now = interval(limit, now, 1.0, used=limit.value)
    assert limit.value == 2
    for _ in range(60):
        now = interval(limit, now, 0.001, used=limit.value)
    assert limit.value == 32


@examples(100)
@given(st.floats(0, 1e3), st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1), st.floats(0, 64)), max_size=200))
def test_it_never_leaves_its_bounds(start: float, waits: list[tuple[float, float, float]]) -> None:
    limit = AdaptiveLimit(SPEC, start)
    now = 0.0
    for wait_s, passed_s, used in waits:
        now += passed_s
        limit.used(used)
        limit.waited(wait_s, now)
        assert SPEC.floor <= limit.value <= SPEC.ceiling


def test_a_fixed_limit_stays() -> None:
    limit = FixedLimit(3)
    limit.used(100)
    for at in range(100):
        limit.waited(10.0, float(at))
    assert limit.value == 3
