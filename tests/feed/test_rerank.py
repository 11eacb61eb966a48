from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallback.ladder import Reason, Rung
from indexer.contract.features import Floats, candidate_features
from services.errors import NotScored
from services.feed.answer import pack, unpack
from services.feed.loaded import Loaded
from services.feed.question import Question
from services.feed.ranker import Ranker
from services.feed.rerank import Scored, score
from services.feed.retrieval import Retriever
from tests.feed.shops import open_shop, question
from tests.properties import examples
from tests.snapshots import CATEGORIES, Shop

COUNT = 120
WEIGHTS = np.array([1.0, 0.5, 2.0, 0.5, -0.1], np.float32)
ASKED = st.tuples(
    st.integers(0, COUNT - 1),
    st.sampled_from(["", *CATEGORIES]),
    st.sampled_from(["", "north", "south"]),
    st.booleans(),
)
SHOP = Shop(count=COUNT, dimension=8, hidden=frozenset(range(0, COUNT, 7)), regional=frozenset(range(60, 80)))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return open_shop(tmp_path_factory.mktemp("snapshots"), SHOP)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return open_shop(tmp_path_factory.mktemp("snapshots"), replace(SHOP, seed=8))


def test_the_ranking_is_that_of_the_ranker_over_the_first_candidates(loaded: Loaded) -> None:
    asked = question(loaded, 5, 9)
    (scored,) = score([asked])
    answer = scored.answer
    assert (scored.rung, scored.reason) == (Rung.RANKED, None)
    assert loaded.ranker is not None
    assert len(answer.ranked) == loaded.ranker.spec.depth == 50
    assert len(answer.rows) == int(loaded.eligible("", "").sum())
    features = candidate_features(
        loaded.items, asked.context, loaded.manifest.query, answer.rows[:50], answer.scores[:50]
    )
    assert answer.rank_scores == pytest.approx((features @ WEIGHTS)[answer.ranked], abs=5e-3)
    assert (np.diff(answer.rank_scores) <= 0).all()
    assert scored.retrieve_ms >= 0
    assert scored.rerank_ms >= 0


@examples(60)
@given(st.lists(ASKED, min_size=1, max_size=12))
def test_a_batch_across_filters_and_snapshots_answers_each_question_as_if_alone(
    loaded: Loaded, other: Loaded, asked: list[tuple[int, str, str, bool]]
) -> None:
    questions = [
        question(other if second else loaded, row, category=category, region=region)
        for row, category, region, second in asked
    ]
    for one, together in zip(questions, score(questions), strict=True):
        (alone,) = score([one])
        assert together.answer.rows.tolist() == alone.answer.rows.tolist()
        assert together.answer.ranked.tolist() == alone.answer.ranked.tolist()
        assert together.answer.rank_scores == pytest.approx(alone.answer.rank_scores, abs=1e-3)
        assert one.loaded.eligible(one.category, one.region)[together.answer.rows].all()
        cached = unpack(pack(together.answer), COUNT)
        assert cached.rows.tolist() == together.answer.rows.tolist()
        assert cached.rank_scores.tolist() == together.answer.rank_scores.tolist()


def test_nothing_eligible_is_an_empty_ranking(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> None:
    sold_out = open_shop(tmp_path_factory.mktemp("snapshots"), Shop(count=3, dimension=4, hidden=frozenset(range(3))))
    empty, full = score([question(sold_out, 0), question(loaded, 1)])
    assert len(empty.answer.rows) == len(empty.answer.ranked) == 0
    assert unpack(pack(empty.answer), 3).rows.tolist() == []
    assert len(full.answer.ranked) == 50


def test_without_a_ranker_the_order_is_that_of_retrieval(loaded: Loaded) -> None:
    (scored,) = score([question(replace(loaded, ranker=None), 5)])
    assert (scored.rung, scored.reason) == (Rung.RETRIEVED, Reason.NO_RANKER)
    assert len(scored.answer.ranked) == 0
    assert len(scored.answer.rows) > 50


class BrokenRanker(Ranker):
    """A ranker whose scores are not finite."""

    def score(self, features: list[Floats]) -> list[Floats]:
        return super().score([np.full_like(block, np.nan) for block in features])


def test_a_ranker_that_fails_degrades_its_own_snapshot_only(loaded: Loaded, other: Loaded) -> None:
    assert loaded.ranker is not None
    broken = replace(loaded, ranker=BrokenRanker(loaded.ranker._session, loaded.ranker.spec))
    first, second = score([question(broken, 5), question(other, 5)])
    assert (first.rung, first.reason) == (Rung.RETRIEVED, Reason.RERANK_FAILED)
    assert len(first.answer.rows) > 50
    assert (second.rung, second.reason) == (Rung.RANKED, None)


def failing(questions: list[Question]) -> Reason:
    with pytest.raises(NotScored) as error:
        score(questions)
    return error.value.reason


def test_without_an_index_nothing_is_scored(loaded: Loaded) -> None:
    assert failing([question(replace(loaded, retriever=None), 5)]) is Reason.NO_INDEX


def test_a_query_of_nan_fails_its_retrieval_and_reaches_no_index(loaded: Loaded) -> None:
    assert loaded.retriever is not None
    vectors = np.full((COUNT, 8), np.nan, np.float16)
    retriever = Retriever(
        loaded.retriever._index,
        vectors,
        index_spec=loaded.manifest.index,
        query=loaded.manifest.query,
        exact_below=0,
        threads=1,
    )
    assert failing([question(replace(loaded, retriever=retriever), 5)]) is Reason.RETRIEVAL_FAILED


def test_scored_answers_are_in_the_order_of_the_questions(loaded: Loaded, other: Loaded) -> None:
    questions = [question(loaded if row % 2 else other, row) for row in range(1, 20)]
    for asked, scored in zip(questions, score(questions), strict=True):
        assert isinstance(scored, Scored)
        nearest = int(scored.answer.rows[0])
        viewed = int(asked.context.rows[0])
        assert nearest == viewed or viewed % 7 == 0
