from __future__ import annotations

import numpy as np
import pytest

from indexer.contract.items import Rows
from indexer.learn.baselines import (
    HeuristicSettings,
    KnnSettings,
    SessionKnn,
    decayed_popularity,
    heuristic,
    item_knn,
    popularity_ranking,
)
from indexer.learn.evaluate import hits, recall
from indexer.learn.measures import measure, whole
from indexer.learn.questions import questions
from indexer.learn.retrieval import Asked, ask, padded
from indexer.learn.tifu import Tifu, TifuSettings
from indexer.learn.tuned import Past, Window, best, tuned_baselines
from tests.learn.shop import DAYS, FIRST_DAY, Shop

TUNE, SPLIT, END = FIRST_DAY + 0.7 * DAYS, FIRST_DAY + 0.8 * DAYS, FIRST_DAY + DAYS
KNN = KnnSettings(last=20)
NAMES = ["popularity", "item_knn_20", "item_knn_100", "vsknn", "tifu_knn", "heuristic"]


@pytest.fixture(scope="module")
def past(shop: Shop) -> Past:
    return Past.of(shop.log, SPLIT)


@pytest.fixture(scope="module")
def asked(shop: Shop) -> list[Asked]:
    return ask(questions(shop.log, SPLIT, END, known=True, seed=1), shop.log, 50)


def worth(asked: list[Asked], ranked: list[Rows], depth: int = 10) -> float:
    targets = [each.question.targets for each in asked]
    return float(recall(hits(padded(ranked, depth), targets), targets, depth).mean())


def test_each_baseline_ranks_what_is_open_and_the_better_ones_win(shop: Shop, past: Past, asked: list[Asked]) -> None:
    popularity = decayed_popularity(shop.log, SPLIT, 30)
    sessions = SessionKnn(shop.log.before(SPLIT), last=20)
    tifu = Tifu(shop.log, SPLIT, TifuSettings(neighbours=10))
    settings = HeuristicSettings(KNN)
    ranked = {
        "popularity": [popularity_ranking(each.question, popularity, 100) for each in asked],
        "item_knn": [item_knn(each.question, each.history, past.near, KNN, 100) for each in asked],
        "vsknn": [sessions.rank(each.question, each.history, 100) for each in asked],
        "tifu": [tifu.rank(each.question, 100) for each in asked],
        "heuristic": [heuristic(each.question, each.history, past.near, popularity, settings, 100) for each in asked],
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


def window(shop: Shop, start: float, stop: float, limit: int) -> Window:
    asked = ask(questions(shop.log, start, stop, known=True, seed=1, limit=limit), shop.log, 50)
    return Window(Past.of(shop.log, start), asked, np.arange(shop.log.n_items) != 0)


def test_all_baselines_are_tuned_before_the_window_and_show_only_what_is_available(shop: Shop) -> None:
    before, test = window(shop, TUNE, SPLIT, 25), window(shop, SPLIT, END, 25)
    found = list(tuned_baselines(before, test))
    assert [each.name for each in found] == NAMES
    for each in found:
        assert len(each.rows) == len(test.asked)
        assert all(0 not in rows and len(rows) for rows in each.rows)
        assert each.settings


def test_nothing_that_comes_after_the_start_of_the_window_changes_how_a_baseline_is_tuned(shop: Shop) -> None:
    before = window(shop, TUNE, SPLIT, 25)
    cut = Window(Past.of(shop.log.before(SPLIT), TUNE), before.asked, before.available)
    test = window(shop, SPLIT, END, 10)
    for mine, other in zip(tuned_baselines(before, test), tuned_baselines(cut, test), strict=True):
        assert mine.settings == other.settings


def test_the_best_setting_is_the_one_with_the_highest_ndcg(shop: Shop) -> None:
    before = window(shop, TUNE, SPLIT, 25)

    def rank(window: Window, half: float) -> list[Rows]:
        popular = decayed_popularity(window.past.log, window.past.start, half)
        return window.rank(lambda each: popularity_ranking(each.question, popular, 10))

    values = {half: measure(whole(before.asked), rank(before, half))["ndcg_at_10"].mean() for half in (0.1, 1.0, 60.0)}
    assert best(before, list(values), rank) == max(values, key=lambda half: values[half])


def test_without_a_question_to_tune_on_nothing_is_guessed(shop: Shop) -> None:
    nothing = window(shop, FIRST_DAY - 9, FIRST_DAY - 8, 5)
    with pytest.raises(ValueError, match="an earlier start of validation is expected"):
        next(tuned_baselines(nothing, nothing))
