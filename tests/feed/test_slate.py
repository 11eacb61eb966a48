from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallback.ladder import Rung
from services.feed.slate import Segment, Slate, build_slate
from tests.properties import examples

COUNT = 30
SCORES = st.one_of(*(st.floats(-largest, largest, width=32) for largest in (1, 65504, 2.0**100)))


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    rows = draw(st.lists(st.integers(0, COUNT - 1), max_size=20))
    scores = sorted(draw(st.lists(SCORES, min_size=len(rows), max_size=len(rows))), reverse=True)
    return segment(draw(st.sampled_from(Rung)), rows, scores)


def segment(rung: Rung, rows: Sequence[int], scores: Sequence[float] | None = None) -> Segment:
    given_scores = np.linspace(1, 0, len(rows)) if scores is None else scores
    return Segment(
        rung, np.array(rows, np.int32), np.array(given_scores, np.float32), np.full(len(rows), rung, np.uint8)
    )


def slate(
    *given_segments: Segment, hidden: Sequence[int] = (), size: int = 10, ineligible: Sequence[int] = ()
) -> Slate:
    eligible = np.ones(COUNT, np.bool_)
    eligible[list(ineligible)] = False
    return build_slate(given_segments, eligible=eligible, hidden=hidden, size=size)


@examples(400)
@given(
    st.lists(segments(), max_size=5),
    st.lists(st.booleans(), min_size=COUNT, max_size=COUNT),
    st.lists(st.integers(0, COUNT - 1), max_size=10),
    st.integers(0, COUNT),
)
def test_a_slate_holds_the_first_rows_that_may_be_shown_each_once(
    given_segments: list[Segment], eligible: list[bool], hidden: list[int], size: int
) -> None:
    """Eligibility holds whatever the rung (gorse-io/gorse#764)."""
    made = build_slate(given_segments, eligible=np.array(eligible), hidden=hidden, size=size)
    in_order = dict.fromkeys(
        row for part in given_segments for row in part.rows.tolist() if eligible[row] and row not in hidden
    )
    assert made.rows.tolist() == list(in_order)[:size]
    assert made.more == (len(in_order) > size)
    assert len(made.scores) == len(made.rows)
    assert np.isfinite(made.scores).all()
    assert (np.diff(made.scores) <= 0).all()
    leading = [part.rung for part in given_segments if set(part.rows.tolist()) & set(in_order)]
    assert made.rung == (leading[0] if leading else None)
    assert made.rows.dtype == np.int32
    assert made.scores.dtype == np.float32


def test_backfill_comes_in_the_order_of_the_segments_and_below_them() -> None:
    made = slate(segment(Rung.RANKED, [1, 2], [5, 4]), segment(Rung.POPULAR, [2, 3, 4], [9, 8, 7]), size=3)
    assert made.rows.tolist() == [1, 2, 3]
    assert made.scores.tolist() == [5, 4, 4]
    assert made.more
    assert made.rung is Rung.RANKED


def test_scores_of_backfill_that_are_low_already_are_kept() -> None:
    made = slate(segment(Rung.RANKED, [1], [5]), segment(Rung.POPULAR, [2, 3], [0.5, 0.25]))
    assert made.scores.tolist() == [5, 0.5, 0.25]


def test_the_rung_is_that_of_the_first_row_that_is_shown() -> None:
    made = slate(segment(Rung.RANKED, [1, 2]), segment(Rung.POPULAR, [3]), ineligible=[1, 2])
    assert made.rung is Rung.POPULAR


def test_a_row_given_twice_in_one_segment_is_shown_once() -> None:
    assert slate(segment(Rung.POPULAR, [4, 2, 4, 2, 3])).rows.tolist() == [4, 2, 3]


def test_more_is_said_only_when_another_row_could_follow() -> None:
    ranked, popular = segment(Rung.RANKED, [1, 2]), segment(Rung.POPULAR, [1, 2, 3])
    assert not slate(ranked, popular, size=3).more
    assert slate(ranked, popular, size=2).more
    assert not slate(ranked, popular, size=2, hidden=[3]).more
    assert not slate(ranked, popular, size=2, ineligible=[3]).more


def test_segments_beyond_the_page_are_not_asked_for() -> None:
    def given_segments() -> Iterator[Segment]:
        yield segment(Rung.RANKED, [1, 2, 3])
        raise AssertionError("a full page needs no backfill")

    made = build_slate(given_segments(), eligible=np.ones(COUNT, np.bool_), hidden=[], size=2)
    assert made.rows.tolist() == [1, 2]


@pytest.mark.parametrize("parts", [(), (segment(Rung.RANKED, []),)])
def test_nothing_to_show_is_an_empty_slate(parts: tuple[Segment, ...]) -> None:
    made = slate(*parts)
    assert (made.rows.tolist(), made.scores.tolist(), made.more, made.rung) == ([], [], False, None)
