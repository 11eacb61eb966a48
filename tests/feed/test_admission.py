from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain import Priority
from services.feed.admission import FULL, PERSONAL, Gate, Outcome, Permit
from services.feed.limit import FixedLimit
from tests.properties import examples

WEIGHTS = st.sampled_from([FULL, PERSONAL])
STEPS = st.lists(
    st.one_of(st.tuples(st.sampled_from(Priority), WEIGHTS), st.tuples(st.integers(0), st.sampled_from(Outcome))),
    max_size=300,
)


@examples(200)
@given(STEPS, st.integers(1, 8), st.integers(0, 8))
def test_never_more_work_than_the_limit_and_each_permit_ends_once(
    steps: list[tuple[Priority, int] | tuple[int, Outcome]], limit: int, prefetch_limit: int
) -> None:
    """Whatever is mixed of full scorings and personal steps: all pass one gate, and their weights add up."""
    prefetch_limit = min(limit, prefetch_limit)
    gate = Gate(FixedLimit(limit), prefetch_limit / limit)
    held: list[tuple[Permit, int]] = []
    ended = 0
    for first, second in steps:
        work = sum(weight for _, weight in held)
        if isinstance(first, Priority):
            assert isinstance(second, int)
            open_to = prefetch_limit if first is Priority.PREFETCH else limit
            permit = gate.try_acquire(first, second)
            assert (permit is not None) == (work + second <= open_to * FULL)
            if permit is not None:
                held.append((permit, second))
        elif held and isinstance(second, Outcome):
            held.pop(first % len(held))[0].end(second)
            ended += 1
        assert gate.in_flight * FULL == sum(weight for _, weight in held) <= limit * FULL
        assert sum(gate.outcomes.values()) == ended


def test_as_many_personal_steps_fit_in_as_weigh_one_full_scoring() -> None:
    gate = Gate(FixedLimit(1), 1)
    held = [gate.try_acquire(Priority.INTERACTIVE, PERSONAL) for _ in range(FULL // PERSONAL + 1)]
    assert [permit is not None for permit in held] == [True] * (FULL // PERSONAL) + [False]
    assert held[0] is not None
    held[0].end(Outcome.SUCCESS)
    assert gate.in_flight == 1 - PERSONAL / FULL
    assert gate.try_acquire(Priority.INTERACTIVE) is None


def test_a_hundred_waves_at_ten_times_the_limit_never_pass_it() -> None:
    """The limit holds after rejections too (grpc/grpc#41531)."""
    rng = random.Random(1)
    gate = Gate(FixedLimit(8), 0.5)
    held: list[Permit] = []
    for _ in range(100):
        tried = [gate.try_acquire(rng.choice(list(Priority))) for _ in range(80)]
        held += [permit for permit in tried if permit is not None]
        assert gate.in_flight == len(held) <= 8
        rng.shuffle(held)
        for _ in range(rng.randint(0, len(held))):
            held.pop().end(rng.choice(list(Outcome)))
    for permit in held:
        permit.end(Outcome.SUCCESS)
    assert gate.in_flight == 0
    assert all(gate.try_acquire(Priority.INTERACTIVE) for _ in range(8))


def test_a_permit_ends_once() -> None:
    gate = Gate(FixedLimit(1), 1)
    permit = gate.try_acquire(Priority.INTERACTIVE)
    assert permit is not None
    permit.end(Outcome.SUCCESS)
    with pytest.raises(RuntimeError, match="ends once"):
        permit.end(Outcome.SUCCESS)
    assert gate.in_flight == 0
    assert gate.outcomes == {Outcome.SUCCESS: 1, Outcome.IGNORED: 0, Outcome.DROPPED: 0}


def test_prefetch_is_shut_out_first() -> None:
    gate = Gate(FixedLimit(3), 1 / 3)
    assert gate.try_acquire(Priority.PREFETCH)
    assert gate.try_acquire(Priority.PREFETCH) is None
    assert gate.try_acquire(Priority.INTERACTIVE)
    assert gate.try_acquire(Priority.INTERACTIVE)
    assert gate.try_acquire(Priority.INTERACTIVE) is None


def test_a_share_of_zero_shuts_prefetch_out_altogether() -> None:
    gate = Gate(FixedLimit(3), 0)
    assert gate.try_acquire(Priority.PREFETCH) is None
    assert gate.try_acquire(Priority.INTERACTIVE)
