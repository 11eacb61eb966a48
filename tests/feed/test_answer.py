from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallback.ladder import Rung
from indexer.contract.blend import Blend
from indexer.contract.features import Floats
from indexer.contract.sources import Shared
from services.feed.answer import Answer, pack, through_half, unpack
from tests.properties import examples

ITEMS, WIDTH = 5000, 128
MASKS = st.integers(1, 255)


def falling(rng: np.random.Generator, count: int, scale: float) -> Floats:
    """As computed answers hold them: through float16."""
    return through_half(np.sort(rng.normal(0, scale, count).astype(np.float32))[::-1].copy())


def answer(count: int, depth: int, seed: int = 0, scale: float = 1.0, width: int = WIDTH) -> Answer:
    rng = np.random.default_rng(seed)
    rows = rng.choice(ITEMS, count, replace=False).astype(np.int32)
    sources = rng.integers(1, 16, count).astype(np.uint8)
    vector = through_half(rng.standard_normal(width).astype(np.float32))
    shared = Shared(Blend(rows, falling(rng, count, scale), sources), vector)
    ranked = rng.permutation(count)[:depth].astype(np.uint16)
    return Answer(shared, ranked, falling(rng, depth, scale), bool(rng.integers(2)))


def same(one: Answer, other: Answer) -> bool:
    def arrays(each: Answer) -> list[npt.NDArray[Any]]:
        found = each.shared.candidates
        return [found.rows, found.scores, found.sources, each.shared.vector, each.ranked, each.rank_scores]

    pairs = zip(arrays(one), arrays(other), strict=True)
    alike = all(np.array_equal(mine, theirs) and mine.dtype == theirs.dtype for mine, theirs in pairs)
    return alike and one.searched == other.searched


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    count = draw(st.integers(0, 500))
    depth = draw(st.integers(0, min(count, 100)))
    return answer(count, depth, draw(st.integers(0, 1000)), draw(st.sampled_from([1e-8, 1.0, 1e4, 1e6])))


@examples(150)
@given(answers())
def test_an_answer_equals_its_cached_copy(given_answer: Answer) -> None:
    assert same(unpack(pack(given_answer), ITEMS, WIDTH), given_answer)


@pytest.mark.parametrize("depth", [50, 100, 145])
def test_500_candidates_fit_into_four_kilobytes(depth: int) -> None:
    assert len(pack(answer(500, depth))) <= 4096


def test_500_candidates_a_ranking_of_50_and_a_vector_take_3714_bytes() -> None:
    assert len(pack(answer(500, 50))) == 8 + 500 * 6 + 50 * 4 + 128 * 2 + 250


def test_scores_beyond_float16_stay_finite_and_in_order() -> None:
    scores = through_half(np.array([1e30, 1e5, 0, -1e30], np.float32))
    assert np.isfinite(scores).all()
    assert (np.diff(scores) <= 0).all()


@pytest.mark.parametrize(
    ("count", "depth", "searched", "rung"),
    [
        (9, 5, True, Rung.RANKED),
        (9, 5, False, Rung.BLENDED),
        (9, 0, True, Rung.RETRIEVED),
        (9, 0, False, Rung.RETRIEVED),
        (0, 0, True, Rung.RANKED),
        (0, 0, False, Rung.BLENDED),
    ],
)
def test_the_rung_says_what_took_part(count: int, depth: int, searched: bool, rung: Rung) -> None:
    assert replace(answer(count, depth), searched=searched).rung is rung


@examples(100)
@given(answers())
def test_the_ranking_and_the_reserve_hold_every_candidate_once(given_answer: Answer) -> None:
    ranked, reserve = given_answer.order()
    assert sorted([*ranked.tolist(), *reserve.tolist()]) == list(range(len(given_answer.shared.candidates)))
    assert ranked.tolist() == given_answer.ranked.tolist()
    assert (np.diff(reserve) > 0).all()


def unpacked_or_refused(data: bytes) -> None:
    """Either a valid answer or ValueError: whatever else is raised fails the test."""
    try:
        got = unpack(data, ITEMS, 4)
    except ValueError:
        return
    found = got.shared.candidates
    assert len(got.ranked) <= len(found.rows) == len(found.scores) == len(found.sources)
    assert not len(found.rows) or (found.rows.min() >= 0 and found.rows.max() < ITEMS)
    assert len(set(got.ranked.tolist())) == len(got.ranked) == len(got.rank_scores)
    assert all(np.isfinite(each).all() for each in (found.scores, got.rank_scores, got.shared.vector))
    assert (np.diff(found.scores) <= 0).all()
    assert found.sources.all()
    got.order()


@examples(400)
@given(st.integers(0, 12), st.integers(0, 12), st.lists(st.tuples(st.integers(0), MASKS), min_size=1, max_size=4))
def test_a_mutated_answer_is_valid_or_refused(count: int, depth: int, flips: list[tuple[int, int]]) -> None:
    data = bytearray(pack(answer(count, min(count, depth), width=4)))
    for at, mask in flips:
        data[at % len(data)] ^= mask
    unpacked_or_refused(bytes(data))


@examples(300)
@given(st.binary(max_size=200))
def test_random_bytes_are_valid_or_refused(data: bytes) -> None:
    unpacked_or_refused(data)
    unpacked_or_refused(b"\x02" + data)


def test_every_truncation_and_every_addition_is_refused() -> None:
    data = pack(answer(20, 10))
    for size in range(len(data)):
        with pytest.raises(ValueError, match="answer: "):
            unpack(data[:size], ITEMS, WIDTH)
    with pytest.raises(ValueError, match="answer: "):
        unpack(data + b"\0", ITEMS, WIDTH)


def one(
    rows: list[int],
    scores: list[float],
    ranked: list[int],
    rank_scores: list[float],
    source: int = 1,
    vector: float = 0,
) -> bytes:
    found = Blend(np.array(rows, np.int32), np.array(scores, np.float32), np.full(len(rows), source, np.uint8))
    shared = Shared(found, np.full(4, vector, np.float32))
    return pack(Answer(shared, np.array(ranked, np.uint16), np.array(rank_scores, np.float32)))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (one([10], [1], [], []), "a row outside"),
        (one([-1], [1], [], []), "a row outside"),
        (one([1, 2], [1, 0], [2], [1]), "a rank outside"),
        (one([1, 2], [1, 0], [0, 0], [1, 1]), "a rank outside"),
        (one([1], [float("nan")], [], []), "a number is not finite"),
        (one([1], [1], [0], [float("inf")]), "a number is not finite"),
        (one([1], [1], [0], [1], vector=float("nan")), "a number is not finite"),
        (one([1, 2], [0, 1], [], []), "scores rise"),
        (one([1, 2], [1, 0], [0, 1], [0, 1]), "scores rise"),
        (one([1, 2], [1, 0], [], [], source=0), "a candidate of no source"),
        (one([1], [1], [0, 0], [1, 1]), "not of this format"),
        (pack(answer(3, 2)), "a vector of another dimension"),
        (b"", "too short"),
        (b"\x01\0\0\0\0\0\0\0", "not of this format"),
        (b"\x02\x02\0\0\0\0\0\0", "not of this format"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=f"answer: {why}"):
        unpack(data, 10, 4)


def test_an_answer_from_a_larger_snapshot_is_refused() -> None:
    data = one([9], [1], [], [])
    assert unpack(data, 10, 4).shared.candidates.rows.tolist() == [9]
    with pytest.raises(ValueError, match="a row outside"):
        unpack(data, 9, 4)
