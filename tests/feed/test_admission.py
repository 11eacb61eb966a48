from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain import Priority
from services.feed.admission import Gate, Outcome, Permit
from tests.properties import examples

STEPS = st.lists(
    st.one_of(st.sampled_from(Priority), st.tuples(st.integers(0), st.sampled_from(Outcome))), max_size=200
)


@examples(200)
@given(STEPS, st.integers(1, 8), st.integers(0, 8))
def test_never_more_permits_than_the_limit_and_each_ends_once(
    steps: list[Priority | tuple[int, Outcome]], limit: int, prefetch_limit: int
) -> None:
    prefetch_limit = min(limit, prefetch_limit)
    gate = Gate(limit, prefetch_limit)
    held: list[Permit] = []
    ended = 0
    for step in steps:
        if isinstance(step, Priority):
            open_to = prefetch_limit if step is Priority.PREFETCH else limit
            permit = gate.try_acquire(step)
            assert (permit is not None) == (len(held) < open_to)
            if permit is not None:
                held.append(permit)
        elif held:
            held.pop(step[0] % len(held)).end(step[1])
            ended += 1
        assert gate.in_flight == len(held) <= limit
        assert sum(gate.outcomes.values()) == ended


def test_a_hundred_waves_at_ten_times_the_limit_never_pass_it() -> None:
    """The limit holds after rejections too (grpc/grpc#41531)."""
    rng = random.Random(1)
    gate = Gate(8, 4)
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
    gate = Gate(1, 1)
    permit = gate.try_acquire(Priority.INTERACTIVE)
    assert permit is not None
    permit.end(Outcome.SUCCESS)
    with pytest.raises(RuntimeError, match="ends once"):
        permit.end(Outcome.SUCCESS)
    assert gate.in_flight == 0
    assert gate.outcomes == {Outcome.SUCCESS: 1, Outcome.IGNORED: 0, Outcome.DROPPED: 0}


def test_prefetch_is_shut_out_first() -> None:
    gate = Gate(3, 1)
    assert gate.try_acquire(Priority.PREFETCH)
    assert gate.try_acquire(Priority.PREFETCH) is None
    assert gate.try_acquire(Priority.INTERACTIVE)
    assert gate.try_acquire(Priority.INTERACTIVE)
    assert gate.try_acquire(Priority.INTERACTIVE) is None


def test_a_share_of_zero_shuts_prefetch_out_altogether() -> None:
    gate = Gate(3, 0)
    assert gate.try_acquire(Priority.PREFETCH) is None
    assert gate.try_acquire(Priority.INTERACTIVE)
