from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer.contract.blend import BlendSpec
from indexer.contract.history import EMPTY, RepurchaseSpec
from indexer.contract.items import Rows
from indexer.contract.neighbours import NeighbourSpec
from indexer.learn.baselines import (
    HeuristicSettings,
    KnnSettings,
    Neighbours,
    SessionKnn,
    decayed_popularity,
    heuristic,
    item_knn,
    popularity_ranking,
)
from indexer.learn.evaluate import hits, recall
from indexer.learn.intervals import Bootstrap
from indexer.learn.questions import Question, questions
from indexer.learn.retrieval import Asked, Retrieval, ask, choose_blend, exact_search, find, padded, repurchase_model
from indexer.learn.tifu import Tifu, TifuSettings
from indexer.learn.tower_export import item_vectors
from indexer.learn.tower_training import TowerSettings, train
from indexer.neighbours import write_neighbours
from tests.learn.shop import DAYS, FIRST_DAY, Shop

SPLIT = FIRST_DAY + 0.8 * DAYS
KNN = KnnSettings(last=20)
TOWERS = TowerSettings(places=20, targets=4, batch=64, epochs=1, id_events=10)


@pytest.fixture(scope="module")
def near(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Neighbours:
    paths: tuple[Path, Path] = tuple(tmp_path_factory.mktemp("near") / name for name in ("ids.npy", "weights.npy"))  # type: ignore[assignment]
    past = shop.log.before(SPLIT).matrix()
    write_neighbours(past, *paths, count=30, shrink=2, longest=100, advance=lambda done: None)
    return Neighbours(*(np.load(path) for path in paths))


@pytest.fixture(scope="module")
def asked(shop: Shop) -> list[Asked]:
    return ask(questions(shop.log, SPLIT, FIRST_DAY + DAYS, known=True, seed=1), shop.log, 50)


def worth(asked: list[Asked], ranked: list[Rows], depth: int = 10) -> float:
    targets = [each.question.targets for each in asked]
    return float(recall(hits(padded(ranked, depth), targets), targets, depth).mean())


def test_each_baseline_ranks_what_is_open_and_the_better_ones_win(
    shop: Shop, near: Neighbours, asked: list[Asked]
) -> None:
    past = shop.log.before(SPLIT)
    popularity = decayed_popularity(shop.log, SPLIT, 30)
    sessions = SessionKnn(past, last=20)
    tifu = Tifu(shop.log, SPLIT, TifuSettings(neighbours=10))
    settings = HeuristicSettings(KNN)
    ranked = {
        "popularity": [popularity_ranking(each.question, popularity, 100) for each in asked],
        "item_knn": [item_knn(each.question, each.history, near, KNN, 100) for each in asked],
        "vsknn": [sessions.rank(each.question, each.history, 100) for each in asked],
        "tifu": [tifu.rank(each.question, 100) for each in asked],
        "heuristic": [heuristic(each.question, each.history, near, popularity, settings, 100) for each in asked],
    }
    for lists in ranked.values():
        for each, rows in zip(asked, lists, strict=True):
            assert rows.dtype == np.int32
            assert len(set(rows.tolist())) == len(rows) <= 100
            assert not np.isin(rows, each.question.context.rows).any()
    score = {name: worth(asked, lists) for name, lists in ranked.items()}
    assert score["popularity"] < min(score["tifu"], score["item_knn"], score["vsknn"])
    assert score["heuristic"] > 0.9 * max(score.values())


def test_popularity_halves(shop: Shop) -> None:
    sums = decayed_popularity(shop.log, SPLIT, 5)
    past = shop.log.before(SPLIT)
    expected = np.zeros(shop.log.n_items)
    np.add.at(expected, past.rows, 0.5 ** ((SPLIT - past.days) / 5))
    np.testing.assert_allclose(sums, expected / expected.max(), rtol=1e-5)


def test_a_user_without_a_past_is_answered_by_the_neighbours_alone(shop: Shop, asked: list[Asked]) -> None:
    tifu = Tifu(shop.log, SPLIT, TifuSettings(neighbours=10, alpha=0.0))
    question = asked[0].question
    newcomer = Question(question.session, question.user, FIRST_DAY, question.context, question.targets)
    assert len(tifu.rank(newcomer, 10)) > 0
    nobody = Question(question.session, -1, question.day, question.context, question.targets)
    assert len(tifu.rank(nobody, 10)) == 0


def test_tifu_weighs_baskets_by_age_within_and_between_groups(shop: Shop) -> None:
    settings = TifuSettings(group=2, within=0.5, between=0.25, neighbours=1, alpha=1.0)
    tifu = Tifu(shop.log, SPLIT, settings)
    order, offsets = shop.log.sessions_of_users()
    mine = order[offsets[0] : offsets[1]][:3]
    own = tifu._vector(0, float(shop.log.begun[mine[-1]]) + 1e-6).toarray().ravel()
    expected = np.zeros(shop.log.n_items)
    for session, weight in zip(mine, (0.25 / 4, 0.5 / 4, 1 / 4), strict=True):
        expected[shop.log.rows[shop.log.session(session)]] += weight
    np.testing.assert_allclose(own, expected, rtol=1e-6)


def test_three_sources_find_more_than_each_and_the_blend_is_chosen_on_recall(
    shop: Shop, near: Neighbours, asked: list[Asked]
) -> None:
    towers = train(shop.log.before(SPLIT), shop.content, replace(TOWERS, epochs=2))
    vectors = item_vectors(towers, shop.content, 0)
    earlier = ask(questions(shop.log, SPLIT - 20, SPLIT, known=True, seed=1), shop.log, 50)
    retrieval = Retrieval(
        vectors,
        towers.session,
        exact_search(vectors),
        near.ids,
        near.similarities,
        NeighbourSpec(limit=40),
        repurchase_model(earlier),
        "shared",
        depth=40,
    )
    found = find(asked, retrieval)
    for each, lists in zip(asked, found, strict=True):
        for rows in (lists.ann, lists.neighbours, lists.history):
            assert len(rows) <= 40
            assert not np.isin(rows, each.question.context.rows).any()
            assert len(set(rows.tolist())) == len(rows)
    targets = [each.question.targets for each in asked]
    spec = choose_blend(found, targets, 10)
    blended = worth(asked, [each.blend(spec).rows for each in found])
    assert blended >= worth(asked, [each.blend(BlendSpec()).rows for each in found])
    for source in ("ann", "neighbours", "history"):
        assert blended >= worth(asked, [getattr(each, source) for each in found])
    vectors_by_mode = [each.vector for each in found]
    assert np.isfinite(vectors_by_mode).all()


def test_nothing_known_of_the_session_leaves_history_and_what_goes_with_it(shop: Shop, near: Neighbours) -> None:
    towers = train(shop.log.before(SPLIT), shop.content, TOWERS)
    vectors = item_vectors(towers, shop.content, 0)
    shared = Retrieval(
        vectors,
        towers.session,
        exact_search(vectors),
        near.ids,
        near.similarities,
        NeighbourSpec(),
        RepurchaseSpec(),
        "shared",
    )
    asked = ask(questions(shop.log, SPLIT, FIRST_DAY + DAYS, known=False, seed=1, limit=20), shop.log, 50)
    found = find(asked, shared)
    assert all(len(each.neighbours) and len(each.history) and len(each.ann) for each in found)
    assert len({each.ann.tobytes() for each in found}) == 1
    newcomer = [Asked(each.question, EMPTY) for each in asked]
    assert all(len(each.neighbours) == len(each.history) == 0 for each in find(newcomer, shared))


def test_intervals_follow_users_not_questions() -> None:
    random = np.random.default_rng(1)
    taste = random.standard_normal(100)
    users = np.repeat(np.arange(100), 50)
    values = taste[users] + 0.01 * random.standard_normal(5000)
    by_user = Bootstrap(users, seed=1, draws=500).mean(values)
    by_question = Bootstrap(np.full(5000, -1), seed=1, draws=500).mean(values)
    assert by_user.mean == by_question.mean == pytest.approx(values.mean())
    assert by_user.high - by_user.low == pytest.approx(2 * 1.96 * taste.std() / 10, rel=0.15)
    assert by_user.high - by_user.low > 5 * (by_question.high - by_question.low)


def test_differences_and_lifts_are_paired() -> None:
    random = np.random.default_rng(2)
    users = np.repeat(np.arange(200), 3)
    theirs = random.random(600)
    bootstrap = Bootstrap(users, seed=1, draws=500)
    difference = bootstrap.difference(theirs + 0.1, theirs)
    assert (difference.mean, difference.low, difference.high) == pytest.approx((0.1, 0.1, 0.1))
    lift = bootstrap.lift(theirs * 1.2, theirs)
    assert (lift.mean, lift.low, lift.high) == pytest.approx((0.2, 0.2, 0.2))
