"""What the compute thread does with a batch: the same as with each piece of work alone, and as the job's own code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallback.ladder import Reason, Rung
from indexer.contract.blend import ANN, HISTORY, NEIGHBOURS, POPULARITY
from indexer.contract.features import Context, Floats
from services.errors import NotScored
from services.feed.answer import Answer, pack, unpack
from services.feed.loaded import Loaded
from services.feed.ranker import Ranker
from services.feed.rerank import Scored, score, shortfalls
from services.feed.work import Work
from tests.feed.by_hand import ByHand
from tests.feed.shops import open_shop, person, question
from tests.properties import examples
from tests.snapshots import CATEGORIES, Shop

COUNT, DIMENSION = 120, 8
SHOP = Shop(count=COUNT, dimension=DIMENSION, hidden=frozenset(range(0, COUNT, 7)), regional=frozenset(range(60, 80)))
ASKED = st.tuples(
    st.lists(st.integers(0, COUNT - 1), max_size=4, unique=True),
    st.sampled_from(["", *CATEGORIES]),
    st.sampled_from(["", "north", "south"]),
    st.integers(0, 2),
    st.lists(st.integers(0, COUNT - 1), max_size=6, unique=True),
    st.sampled_from(["shared", "personal step", "alone"]),
)
Case = tuple[list[int], str, str, int, list[int], str]


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> list[Loaded]:
    """Two by the mean, one by a tower."""
    made = (SHOP, replace(SHOP, seed=8), replace(SHOP, seed=9, tower=True))
    return [open_shop(tmp_path_factory.mktemp("snapshots"), shop) for shop in made]


@pytest.fixture(scope="module")
def loaded(shops: list[Loaded]) -> Loaded:
    return shops[0]


@pytest.fixture(scope="module")
def tower(shops: list[Loaded]) -> Loaded:
    return shops[2]


def alone(work: Work) -> Answer:
    (scored,) = score([work])
    return scored.answer


def rows_of(answer: Answer) -> list[int]:
    return [int(row) for row in answer.shared.candidates.rows]


@pytest.mark.parametrize("which", [0, 2])
@pytest.mark.parametrize(("viewed", "bought"), [([5, 9], []), ([5, 9], [11, 9, 3]), ([], [11, 9, 3])])
def test_it_is_the_arithmetic_that_the_models_were_learned_with(
    shops: list[Loaded], which: int, viewed: list[int], bought: list[int]
) -> None:
    hand = ByHand(shops[which])
    asked, who = question(shops[which], *viewed), person(*bought)
    base = alone(Work(asked))
    shared = hand.shared(asked, who.history.rows[:0], "shared")
    assert rows_of(base) == shared.candidates.rows.tolist()
    np.testing.assert_array_equal(base.shared.vector, shared.vector)
    for answer, found, scores in (
        (alone(Work(asked, who, base)), *hand.scores(asked, who, "shared")),
        (alone(Work(asked, who)), *hand.scores(asked, who, "personal")),
    ):
        assert rows_of(answer) == found.rows.tolist()
        assert answer.shared.candidates.sources.tolist() == found.sources.tolist()
        np.testing.assert_allclose(answer.rank_scores, scores[answer.ranked], atol=1e-5)
        assert (np.diff(answer.rank_scores) <= 0).all()


def test_the_first_candidates_are_reranked_and_the_rest_is_the_reserve(loaded: Loaded) -> None:
    answer = alone(Work(question(loaded, 5, 9)))
    assert loaded.ranker is not None
    assert (answer.rung, shortfalls(answer, loaded)) == (Rung.RANKED, ())
    assert len(answer.ranked) == loaded.ranker.spec.depth == 50
    assert len(rows_of(answer)) == int(loaded.eligible("", "").sum()) - 2
    assert answer.order()[1].tolist() == list(range(50, len(rows_of(answer))))


def made(shops: list[Loaded], case: Case) -> Work:
    viewed, category, region, which, bought, kind = case
    asked = question(shops[which], *viewed, category=category, region=region)
    if kind == "shared":
        return Work(asked)
    return Work(asked, person(*bought), alone(Work(asked)) if kind == "personal step" else None)


@examples(60)
@given(st.lists(ASKED, min_size=1, max_size=12))
def test_a_batch_across_kinds_filters_and_snapshots_answers_each_as_if_alone(
    shops: list[Loaded], cases: list[Case]
) -> None:
    works = [made(shops, case) for case in cases]
    for work, together in zip(works, score(works), strict=True):
        separate, answer = alone(work), together.answer
        assert rows_of(answer) == rows_of(separate)
        assert answer.ranked.tolist() == separate.ranked.tolist()
        assert answer.rank_scores == pytest.approx(separate.rank_scores, abs=1e-3)
        allowed = work.question.loaded.eligible(work.question.category, work.question.region)
        assert allowed[rows_of(answer)].all()
        assert not np.isin(rows_of(answer), work.question.context.rows).any()


@examples(60)
@given(ASKED)
def test_a_personal_step_on_a_cached_answer_is_that_on_a_computed_one(shops: list[Loaded], case: Case) -> None:
    viewed, category, region, which, bought, _ = case
    asked = question(shops[which], *viewed, category=category, region=region)
    computed = alone(Work(asked))
    cached = unpack(pack(computed), COUNT, DIMENSION)
    one, other = (alone(Work(asked, person(*bought), answer)) for answer in (computed, cached))
    assert rows_of(one) == rows_of(other)
    assert one.rank_scores.tolist() == other.rank_scores.tolist()
    assert one.ranked.tolist() == other.ranked.tolist()


def test_the_context_and_nothing_else_decides_what_is_shared(loaded: Loaded) -> None:
    asked = question(loaded, 5, 9)
    base = alone(Work(asked))
    assert pack(alone(Work(asked))) == pack(base)
    history = alone(Work(asked, person(11, 3), base))
    assert rows_of(history) != rows_of(base)
    sources = dict(zip(rows_of(history), history.shared.candidates.sources.tolist(), strict=True))
    assert sources[11] & HISTORY
    assert sources[3] & HISTORY
    assert all(bits & (ANN | NEIGHBOURS | HISTORY) and not bits & POPULARITY for bits in sources.values())


def test_what_was_bought_and_may_not_be_shown_here_is_no_candidate(loaded: Loaded) -> None:
    asked = question(loaded, 5, region="south", category="tea")
    answer = alone(Work(asked, person(7, 63, 4, 9), alone(Work(asked))))
    assert {7, 63, 4}.isdisjoint(rows_of(answer))  # hidden, of another region, of another category
    assert 9 in rows_of(answer)


def test_in_a_history_alone_the_neighbours_of_what_was_bought_are_candidates(loaded: Loaded) -> None:
    asked = question(loaded)
    base = alone(Work(asked))
    assert (rows_of(base), base.rung) == ([], Rung.RANKED)  # of nobody nothing is known; the mean of nothing is nothing
    answer = alone(Work(asked, person(11), base))
    assert loaded.shelf is not None
    allowed = loaded.eligible("", "")
    near = [row for row in loaded.shelf.neighbours[11].tolist() if row >= 0 and allowed[row]]
    assert set(rows_of(answer)) == {11, *near}


def test_the_empty_context_of_a_tower_is_searched_for(tower: Loaded) -> None:
    answer = alone(Work(question(tower)))
    assert len(rows_of(answer)) == int(tower.eligible("", "").sum())


def test_a_context_is_cut_to_the_places_of_the_tower(tower: Loaded) -> None:
    query = tower.manifest.query.model_copy(update={"places": 2})
    short = replace(tower, manifest=tower.manifest.model_copy(update={"query": query}))
    assert alone(Work(question(short, 5, 9, 11))).shared.vector.tolist() == (
        alone(Work(question(tower, 5, 9))).shared.vector.tolist()
    )


def test_nothing_eligible_is_an_empty_ranking(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> None:
    sold_out = open_shop(tmp_path_factory.mktemp("snapshots"), Shop(count=3, dimension=4, hidden=frozenset(range(3))))
    empty, full = score([Work(question(sold_out, 0)), Work(question(loaded, 1))])
    assert rows_of(empty.answer) == []
    assert rows_of(unpack(pack(empty.answer), 3, 4)) == []
    assert len(full.answer.ranked) == 50


def test_without_a_ranker_the_order_is_that_of_the_blend(loaded: Loaded) -> None:
    unranked = replace(loaded, ranker=None)
    answer = alone(Work(question(unranked, 5)))
    assert (answer.rung, shortfalls(answer, unranked)) == (Rung.RETRIEVED, (Reason.NO_RANKER,))
    assert len(answer.ranked) == 0
    assert rows_of(answer) == rows_of(alone(Work(question(loaded, 5))))


class BrokenRanker(Ranker):
    """A ranker that fails on whoever bought something, and on all when `always`."""

    always = False

    def score(self, tensors: Mapping[str, npt.NDArray[np.generic]], sizes: Sequence[int]) -> list[Floats]:
        if self.always or np.asarray(tensors["context_types"] == 6).any():
            raise RuntimeError("broken")
        return super().score(tensors, sizes)


def with_broken(loaded: Loaded, *, always: bool) -> Loaded:
    assert loaded.ranker is not None
    ranker = BrokenRanker(loaded.ranker._session, loaded.ranker.spec)
    ranker.always = always
    return replace(loaded, ranker=ranker)


def test_a_ranker_that_fails_degrades_its_own_snapshot_only(shops: list[Loaded]) -> None:
    broken = with_broken(shops[0], always=True)
    first_, second = score([Work(question(broken, 5)), Work(question(shops[1], 5))])
    assert (first_.answer.rung, shortfalls(first_.answer, broken)) == (Rung.RETRIEVED, (Reason.RERANK_FAILED,))
    assert len(rows_of(first_.answer)) > 50
    assert (second.answer.rung, shortfalls(second.answer, shops[1])) == (Rung.RANKED, ())


def test_a_ranker_that_fails_for_one_fails_for_that_one_only(loaded: Loaded) -> None:
    broken = with_broken(loaded, always=False)
    asked = question(broken, 5)
    base = alone(Work(asked))
    scored = score([Work(asked), Work(asked, person(3), base), Work(asked, person(), base)])
    assert [each.answer.rung for each in scored] == [Rung.RANKED, Rung.RETRIEVED, Rung.RANKED]


def blended(loaded: Loaded, reason: Reason) -> None:
    """Popular items stand in for the nearest ones, neighbours and history are there, and all is reranked."""
    asked = question(loaded, 5, category="tea")
    answer = alone(Work(asked))
    assert (answer.rung, shortfalls(answer, loaded)) == (Rung.BLENDED, (reason,))
    assert unpack(pack(answer), COUNT, DIMENSION).rung is Rung.BLENDED
    own = alone(Work(asked, person(9, 12), answer))
    assert own.rung is Rung.BLENDED
    joined = int(np.bitwise_or.reduce(own.shared.candidates.sources))
    assert joined == POPULARITY | NEIGHBOURS | HISTORY
    for each in (answer, own):
        assert loaded.eligible("tea", "")[rows_of(each)].all()
        assert 5 not in rows_of(each)
        assert len(each.ranked) == min(50, len(rows_of(each)))


@pytest.mark.parametrize("lost", ["retriever", "encode"])
def test_without_vector_search_popularity_stands_in(tower: Loaded, lost: str) -> None:
    lacking: dict[str, Any] = {lost: None}
    blended(replace(tower, **lacking), Reason.NO_INDEX)


def test_a_session_vector_that_cannot_be_had_leaves_the_blend(loaded: Loaded) -> None:
    def fail(contexts: Sequence[Context]) -> Floats:
        raise ValueError(f"a session vector of {len(contexts)} is not finite")

    blended(replace(loaded, encode=fail), Reason.RETRIEVAL_FAILED)


def test_a_search_that_fails_leaves_the_blend_to_those_for_which_it_fails(loaded: Loaded) -> None:
    assert loaded.encode is not None
    encode = loaded.encode

    def nan_for_the_first_item(contexts: Sequence[Context]) -> Floats:
        found = encode(contexts)
        found[[0 in context.rows for context in contexts]] = np.nan
        return found

    strange = replace(loaded, encode=nan_for_the_first_item)
    scored = score([Work(question(strange, row)) for row in (1, 0, 2)])
    assert [each.answer.searched for each in scored] == [True, False, True]


def test_of_a_snapshot_without_vectors_nothing_is_scored(loaded: Loaded) -> None:
    with pytest.raises(NotScored) as refused:
        score([Work(question(replace(loaded, shelf=None), 5))])
    assert refused.value.reason is Reason.NO_INDEX


def test_what_lacks_its_neighbours_says_so_and_may_not_be_kept(loaded: Loaded) -> None:
    lacking = replace(loaded, near=False)
    assert shortfalls(alone(Work(question(lacking, 5))), lacking) == (Reason.NO_NEIGHBOURS,)


def test_scored_answers_are_in_the_order_of_the_work(shops: list[Loaded]) -> None:
    works = [Work(question(shops[row % 3], row)) for row in range(1, 20)]
    for work, scored in zip(works, score(works), strict=True):
        assert isinstance(scored, Scored)
        assert rows_of(scored.answer) == rows_of(alone(work))
        assert scored.retrieve_ms >= 0
        assert scored.rerank_ms >= 0
