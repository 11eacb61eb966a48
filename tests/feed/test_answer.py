from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.feed.answer import Answer, pack, unpack
from tests.properties import examples

ITEMS = 5000
MASKS = st.integers(1, 255)


def falling(rng: np.random.Generator, count: int, scale: float) -> np.ndarray:
    return np.sort(rng.normal(0, scale, count).astype(np.float32))[::-1].copy()


def answer(count: int, depth: int, seed: int = 0, scale: float = 1.0) -> Answer:
    rng = np.random.default_rng(seed)
    rows = rng.choice(ITEMS, count, replace=False).astype(np.int32)
    ranked = rng.permutation(count)[:depth].astype(np.uint16)
    return Answer.of(rows, falling(rng, count, scale), ranked, falling(rng, depth, scale))


def same(one: Answer, other: Answer) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("rows", "scores", "ranked", "rank_scores")]
    return all(np.array_equal(mine, theirs) and mine.dtype == theirs.dtype for mine, theirs in pairs)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    count = draw(st.integers(0, 500))
    depth = draw(st.integers(0, min(count, 100)))
    return answer(count, depth, draw(st.integers(0, 1000)), draw(st.sampled_from([1e-8, 1.0, 1e4, 1e6])))


@examples(150)
@given(answers())
def test_an_answer_equals_its_cached_copy(given_answer: Answer) -> None:
    assert same(unpack(pack(given_answer), ITEMS), given_answer)


@pytest.mark.parametrize("depth", [50, 100, 250])
def test_500_candidates_fit_into_four_kilobytes(depth: int) -> None:
    assert len(pack(answer(500, depth))) <= 4096


def test_500_candidates_and_a_ranking_of_50_take_3205_bytes() -> None:
    assert len(pack(answer(500, 50))) == 5 + 500 * 6 + 50 * 4


def test_scores_beyond_float16_stay_finite_and_in_order() -> None:
    scores = np.array([1e30, 1e5, 0, -1e30], np.float32)
    made = Answer.of(np.arange(4, dtype=np.int32), scores, np.empty(0, np.uint16), np.empty(0, np.float32))
    assert np.isfinite(made.scores).all()
    assert (np.diff(made.scores) <= 0).all()
    assert same(unpack(pack(made), 4), made)


@examples(100)
@given(answers())
def test_the_ranking_and_the_reserve_hold_every_candidate_once(given_answer: Answer) -> None:
    rows, scores, reserve, reserve_scores = given_answer.ordered()
    assert sorted([*rows.tolist(), *reserve.tolist()]) == sorted(given_answer.rows.tolist())
    assert rows.tolist() == [given_answer.rows[at] for at in given_answer.ranked]
    assert len(rows) == len(scores)
    assert (np.diff(scores) <= 0).all()
    assert (np.diff(reserve_scores) <= 0).all()
    assert len(reserve) == len(reserve_scores)


def unpacked_or_refused(data: bytes) -> None:
    """Either a valid answer or ValueError: whatever else is raised fails the test."""
    try:
        got = unpack(data, ITEMS)
    except ValueError:
        return
    assert len(got.ranked) <= len(got.rows) == len(got.scores)
    assert not len(got.rows) or (got.rows.min() >= 0 and got.rows.max() < ITEMS)
    assert len(set(got.ranked.tolist())) == len(got.ranked) == len(got.rank_scores)
    assert np.isfinite(got.scores).all()
    assert np.isfinite(got.rank_scores).all()
    assert (np.diff(got.scores) <= 0).all()
    got.ordered()


@examples(400)
@given(st.integers(0, 12), st.integers(0, 12), st.lists(st.tuples(st.integers(0), MASKS), min_size=1, max_size=4))
def test_a_mutated_answer_is_valid_or_refused(count: int, depth: int, flips: list[tuple[int, int]]) -> None:
    data = bytearray(pack(answer(count, min(count, depth))))
    for at, mask in flips:
        data[at % len(data)] ^= mask
    unpacked_or_refused(bytes(data))


@examples(300)
@given(st.binary(max_size=200))
def test_random_bytes_are_valid_or_refused(data: bytes) -> None:
    unpacked_or_refused(data)
    unpacked_or_refused(b"\x01" + data)


def test_every_truncation_and_every_addition_is_refused() -> None:
    data = pack(answer(20, 10))
    for size in range(len(data)):
        with pytest.raises(ValueError, match="answer: "):
            unpack(data[:size], ITEMS)
    with pytest.raises(ValueError, match="answer: "):
        unpack(data + b"\0", ITEMS)


def one(rows: list[int], scores: list[float], ranked: list[int], rank_scores: list[float]) -> bytes:
    positions = np.array(ranked, np.uint16)
    return pack(
        Answer(np.array(rows, np.int32), np.array(scores, np.float32), positions, np.array(rank_scores, np.float32))
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (one([10], [1], [], []), "a row outside"),
        (one([-1], [1], [], []), "a row outside"),
        (one([1, 2], [1, 0], [2], [1]), "a rank outside"),
        (one([1, 2], [1, 0], [0, 0], [1, 1]), "a rank outside"),
        (one([1], [float("nan")], [], []), "a score is not finite"),
        (one([1], [1], [0], [float("inf")]), "a score is not finite"),
        (one([1, 2], [0, 1], [], []), "scores rise"),
        (one([1, 2], [1, 0], [0, 1], [0, 1]), "scores rise"),
        (one([1], [1], [0, 0], [1, 1]), "not of this format"),
        (b"", "too short"),
        (b"\x02\0\0\0\0", "not of this format"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=f"answer: {why}"):
        unpack(data, 10)


def test_an_answer_from_a_larger_snapshot_is_refused() -> None:
    data = one([9], [1], [], [])
    assert unpack(data, 10).rows.tolist() == [9]
    with pytest.raises(ValueError, match="a row outside"):
        unpack(data, 9)
