from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallback.ladder import Rung
from services.feed.slate import Segment, Slate, build_slate
from services.feed.slate_rules import Diversity, NearDuplicates, Rules
from tests.properties import examples

COUNT = 24
DIRECTIONS = np.array([[1, 0], [1, 1], [0, 1], [-1, 0], [0, 0]], np.float32)
SIMILARITY = 0.9
"""Of DIRECTIONS, only equal ones are alike; the last is like none."""


SIZES = st.integers(1, COUNT + 2)
RELEVANCE_ALONE = st.just(1.0)
MMR = st.sampled_from([0.0, 0.3, 0.7, 1.0])


@dataclass(frozen=True)
class Case:
    """A ranking in segments, and what the rules look at."""

    by: Diversity
    segments: tuple[Segment, ...]
    directions: Sequence[int]

    @property
    def ranked(self) -> list[int]:
        return list(dict.fromkeys(row for part in self.segments for row in part.rows.tolist()))

    def page(self, size: int, shown: Sequence[int] = (), hidden: Sequence[int] = ()) -> Slate:
        allowed = np.ones(COUNT, np.bool_)
        return build_slate(self.segments, eligible=allowed, hidden=hidden, size=size, shown=shown, diversity=self.by)

    def alike(self, one: int, other: int) -> bool:
        same = bool(self.by.variant[one] == self.by.variant[other])
        known = self.by.vectors is not None and DIRECTIONS[self.directions[one]].any()
        similar = bool(known and self.directions[one] == self.directions[other])
        answers = {"off": False, "text": same, "vectors": similar, "either": same or similar, "both": same and similar}
        return answers[self.by.rules.near_duplicates]

    def within_caps(self, row: int, page: Sequence[int]) -> bool:
        caps = (self.by.category, self.by.rules.category_cap), (self.by.brand, self.by.rules.brand_cap)
        return all(
            not cap or codes[row] < 0 or sum(codes[other] == codes[row] for other in page) < cap for codes, cap in caps
        )

    def may_follow(self, page: Sequence[int], shown: Sequence[int]) -> list[int]:
        """The candidates among which the next one is chosen, best ranked first."""
        left = [row for row in self.ranked if row not in {*page, *shown}]
        within = [row for row in left if self.within_caps(row, page)]
        distinct = [row for row in within if not any(self.alike(row, other) for other in (*page, *shown))]
        return distinct or within or left


@st.composite
def cases(draw: st.DrawFn, mmr: st.SearchStrategy[float] = RELEVANCE_ALONE) -> Case:
    def codes(least: int) -> np.ndarray:
        return np.array(draw(st.lists(st.integers(least, 3), min_size=COUNT, max_size=COUNT)), np.int32)

    directions = draw(st.lists(st.integers(0, len(DIRECTIONS) - 1), min_size=COUNT, max_size=COUNT))
    lengths = draw(st.lists(st.sampled_from([0.25, 1, 40]), min_size=COUNT, max_size=COUNT))
    vectors = (DIRECTIONS[directions] * np.array(lengths)[:, None]).astype(np.float16)
    which: NearDuplicates = draw(st.sampled_from(["off", "text", "vectors", "either", "both"]))
    caps = st.sampled_from([0, 1, 2, 5])
    rules = Rules(which, SIMILARITY, draw(caps), draw(caps), draw(mmr))
    known = draw(st.sampled_from([vectors, vectors, None]))
    rows = draw(st.permutations(range(COUNT)))[: draw(st.integers(0, COUNT))]
    cut = draw(st.integers(0, len(rows)))
    parts = segment(Rung.RANKED, rows[:cut]), segment(Rung.POPULAR, rows[cut:] + rows[:3])
    return Case(Diversity(rules, codes(0), codes(-1), codes(-1), known), parts, directions)


def segment(rung: Rung, rows: Sequence[int]) -> Segment:
    falling = np.linspace(1, 0, len(rows), dtype=np.float32)
    return Segment(rung, np.array(rows, np.int32), falling, np.array(rows, np.uint8) % 16)


def all_pages(case: Case, size: int) -> Iterator[tuple[list[int], Slate]]:
    """What was shown before each page, and the page."""
    shown: list[int] = []
    more = True
    while more:
        page = case.page(size, shown)
        yield list(shown), page
        shown += page.rows.tolist()
        more = page.more


@examples(120)
@given(cases(), SIZES)
def test_every_place_goes_to_the_best_ranked_that_the_rules_allow(case: Case, size: int) -> None:
    """So a cap holds, and no near-duplicate is shown, while anything else is left, on whichever page."""
    for shown, page in all_pages(case, size):
        before: list[int] = []
        for row in page.rows.tolist():
            assert row == case.may_follow(before, shown)[0]
            before.append(row)


@examples(120)
@given(cases(MMR), SIZES)
def test_pages_together_are_the_ranking_in_another_order_and_none_is_short(case: Case, size: int) -> None:
    rows: list[int] = []
    for shown, page in all_pages(case, size):
        assert len(page.rows) == min(size, len(case.ranked) - len(shown))
        rows += page.rows.tolist()
    assert len(rows) == len(set(rows))
    assert sorted(rows) == sorted(case.ranked)


@examples(80)
@given(cases(MMR), SIZES, st.lists(st.integers(0, COUNT - 1), max_size=5))
def test_scores_never_rise_and_sources_stay_with_their_rows(case: Case, size: int, hidden: list[int]) -> None:
    page = case.page(size, hidden=hidden)
    assert not set(page.rows.tolist()) & set(hidden)
    assert (np.diff(page.scores) <= 0).all()
    assert page.sources.tolist() == [row % 16 for row in page.rows.tolist()]
    assert [column.dtype.name for column in (page.rows, page.scores, page.sources)] == ["int32", "float32", "uint8"]
    first = page.rows[:1].tolist()
    rungs = [part.rung for part in case.segments if set(first) & set(part.rows.tolist())]
    assert page.rung == (rungs[0] if rungs else None)


@examples(80)
@given(cases(), SIZES, st.lists(st.integers(0, COUNT - 1), max_size=5, unique=True))
def test_rules_that_are_off_leave_the_ranking_as_it_is(case: Case, size: int, shown: list[int]) -> None:
    off = replace(case, by=replace(case.by, rules=Rules(similarity=SIMILARITY)))
    page = off.page(size, shown)
    left = [row for row in case.ranked if row not in shown]
    assert page.rows.tolist() == left[:size]
    assert page.more == (len(left) > size)


@examples(80)
@given(cases(), st.integers(1, 3), st.integers(1, COUNT))
def test_a_cap_is_exceeded_by_no_more_than_a_full_page_needs(case: Case, cap: int, size: int) -> None:
    for rules, codes in ((Rules(category_cap=cap), case.by.category), (Rules(brand_cap=cap), case.by.brand)):
        page = replace(case, by=replace(case.by, rules=rules)).page(size).rows
        over = sum(max(0, int((codes[page] == code).sum()) - cap) for code in range(4))
        room = sum(min(cap, int((codes[case.ranked] == code).sum())) for code in range(4))
        free = int((codes[case.ranked] < 0).sum())
        assert over == max(0, len(page) - room - free)


@examples(80)
@given(cases(st.sampled_from([0.0, 0.3, 0.7])), st.integers(COUNT // 2, COUNT))
def test_mmr_takes_the_most_relevant_for_how_new_it_is(case: Case, size: int) -> None:
    """The page is chosen among the first two pages of candidates: all of them here."""
    by = replace(case.by, rules=Rules(mmr=case.by.rules.mmr))
    case = replace(case, by=by, segments=(segment(Rung.RANKED, case.ranked),))
    page = case.page(size).rows.tolist()
    relevance = dict(zip(case.ranked, np.linspace(1, 0, len(case.ranked)), strict=True))
    unit = DIRECTIONS / np.maximum(np.linalg.norm(DIRECTIONS, axis=1, keepdims=True), 1e-6)
    for at in range(1, len(page)):

        def value(row: int) -> float:
            vectors = unit[[case.directions[other] for other in page[:at]]]  # noqa: B023 - called in this round
            known = by.vectors is not None
            closest = float((vectors @ unit[case.directions[row]]).max()) if known else 0.0
            return float(by.rules.mmr * relevance[row] - (1 - by.rules.mmr) * closest)

        assert value(page[at]) == pytest.approx(max(map(value, set(case.ranked) - set(page[:at]))), abs=1e-3)


def shop(rules: Rules, **columns: list[int]) -> Case:
    rows = list(range(8))
    given_codes = {name: np.array(columns.get(name, rows), np.int32) for name in ("variant", "category", "brand")}
    vectors = DIRECTIONS[[0] * 8].astype(np.float16)
    return Case(Diversity(rules, **given_codes, vectors=vectors), (segment(Rung.RANKED, rows),), [0] * 8)


def test_a_variant_of_what_is_shown_comes_after_everything_else_on_this_page_and_the_next() -> None:
    case = shop(Rules("text"), variant=[0, 0, 1, 1, 2, 0, 3, 4])
    assert case.page(3).rows.tolist() == [0, 2, 4]
    assert case.page(3, shown=[0, 2, 4]).rows.tolist() == [6, 7, 1]


def test_a_cap_counts_each_page_anew() -> None:
    case = shop(Rules(category_cap=1), category=[0, 0, 0, 1, 1, 1, 2, 2])
    assert case.page(3).rows.tolist() == [0, 3, 6]
    assert case.page(3, shown=[0, 3, 6]).rows.tolist() == [1, 4, 7]


def test_a_page_of_one_category_has_no_cap_of_categories() -> None:
    rules = Rules(category_cap=1, brand_cap=2)
    assert rules.within_category() == Rules(brand_cap=2)
    case = shop(rules.within_category(), category=[0] * 8, brand=[0, 0, 0, 1, 1, 1, 1, 1])
    assert case.page(4).rows.tolist() == [0, 1, 3, 4]


def test_when_nothing_else_is_left_near_duplicates_come_before_what_is_over_a_cap() -> None:
    case = shop(Rules("text", brand_cap=1), variant=[0, 1, 0, 2, 3, 4, 5, 6], brand=[0, 0, -1, 0, 0, 0, 0, 0])
    assert case.page(8).rows.tolist() == [0, 2, 1, 3, 4, 5, 6, 7]


def test_a_row_that_was_put_behind_has_at_most_the_score_of_the_row_before_it() -> None:
    case = shop(Rules("text"), variant=[0, 0, 1, 2, 3, 4, 5, 6])
    page = case.page(8)
    assert page.rows.tolist() == [0, 2, 3, 4, 5, 6, 7, 1]
    assert page.scores.tolist()[:-1] == sorted(case.segments[0].scores[page.rows[:-1]].tolist(), reverse=True)
    assert page.scores[-1] == page.scores[-2]


def test_without_vectors_no_two_items_are_similar() -> None:
    rules = Rules("vectors", SIMILARITY, mmr=0.5)
    assert shop(rules).page(2).rows.tolist() != [0, 7]
    blind = replace(shop(rules), by=replace(shop(rules).by, vectors=None))
    assert blind.page(8).rows.tolist() == list(range(8))


def test_more_candidates_are_asked_for_only_when_the_first_do_not_fill_the_page() -> None:
    case = shop(Rules("text"), variant=[0, 0, 0, 0, 1, 2, 3, 4])

    def parts(more: list[int]) -> Iterator[Segment]:
        yield case.segments[0]
        if not more:
            raise AssertionError("the page was full")
        yield segment(Rung.POPULAR, more)

    allowed = np.ones(COUNT, np.bool_)
    variant = np.arange(COUNT, dtype=np.int32) * np.array([0] * 8 + [1] * (COUNT - 8), np.int32)
    by = replace(case.by, variant=case.by.variant)
    assert build_slate(parts([]), eligible=allowed, hidden=[], size=3, diversity=by).rows.tolist() == [0, 4, 5]
    alike = replace(case.by, variant=variant)
    page = build_slate(parts([8, 9]), eligible=allowed, hidden=[], size=3, diversity=alike)
    assert page.rows.tolist() == [0, 8, 9]
    assert page.more
