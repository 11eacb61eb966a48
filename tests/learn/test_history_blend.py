from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract.blend import ANN, HISTORY, NEIGHBOURS, BlendSpec, blend, ranked_list, source_names
from indexer.contract.features import PURCHASE
from indexer.contract.history import (
    EMPTY,
    FEATURES,
    History,
    RepurchaseSpec,
    expand,
    history_features,
    repurchase_candidates,
    repurchase_scores,
)
from indexer.learn import repurchase
from indexer.learn.histories import Histories
from indexer.learn.questions import questions
from indexer.learn.repurchase import fit_repurchase
from indexer.learn.retrieval import ask
from tests.learn.shop import DAYS, FIRST_DAY, Shop

SPEC = BlendSpec()
lists = st.lists(st.integers(0, 30), unique=True, max_size=20).map(lambda rows: np.array(rows, np.int32))


def naive(shop: Shop, user: int, session: int) -> dict[int, list[float]]:
    """Days of purchase by item, oldest first."""
    log = shop.log
    bought: dict[int, list[float]] = {}
    for number in range(session):
        if log.users[number] == user:
            span = log.session(number)
            for row, day, kind in zip(log.rows[span], log.days[span], log.types[span], strict=True):
                if kind == PURCHASE:
                    bought.setdefault(int(row), []).append(float(day))
    return bought


def test_a_history_counts_what_was_bought_before_the_question_and_nothing_else(shop: Shop) -> None:
    histories = Histories(shop.log)
    for question in questions(shop.log, FIRST_DAY, FIRST_DAY + DAYS, known=True, seed=1, limit=40):
        history = histories.at(question.user, question.session, question.day)
        expected = naive(shop, question.user, question.session)
        assert dict(zip(history.rows.tolist(), history.times.tolist(), strict=True)) == {
            row: len(days) for row, days in expected.items()
        }
        for row, first, last in zip(history.rows.tolist(), history.first, history.last, strict=True):
            assert (first, last) == (expected[row][0], expected[row][-1])
        assert np.all(np.diff(history.last) <= 0)
        assert history.last.max(initial=0) < question.day
        assert history.sessions == len({day for days in expected.values() for day in days})


def test_nobody_has_no_history(shop: Shop) -> None:
    assert len(Histories(shop.log).at(-1, 10**6, 1e9)) == 0
    rows, scores = repurchase_candidates(EMPTY, 0.0, RepurchaseSpec(), 10)
    assert len(rows) == len(scores) == 0


@given(
    st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 30_000), st.floats(0, 30_000)), max_size=8),
    st.floats(0, 40_000),
    st.integers(0, 20_000),
)
def test_history_features_are_finite_whatever_the_clocks_said(
    items: list[tuple[int, float, float]], day: float, sessions: int
) -> None:
    times = np.array([count for count, _, _ in items], np.int32)
    first = np.array([min(one, other) for _, one, other in items])
    last = np.array([max(one, other) for _, one, other in items])
    history = History(np.arange(len(items), dtype=np.int32), times, first, last, sessions)
    features = history_features(history, day)
    assert features.shape == (len(items), len(FEATURES))
    assert np.isfinite(features).all()
    assert np.isfinite(repurchase_scores(features, RepurchaseSpec())).all()


def test_the_repurchase_model_finds_what_decides() -> None:
    random = np.random.default_rng(1)
    features = [random.standard_normal((50, 6)).astype(np.float32) for _ in range(100)]
    odds = [3 * block[:, 2] - 2 * block[:, 0] * block[:, 1] - 1 for block in features]
    bought = [random.random(50) < 1 / (1 + np.exp(-each)) for each in odds]
    spec = fit_repurchase(features, bought)
    assert spec.linear[2] == pytest.approx(3, abs=0.3)
    assert spec.with_times[0] == pytest.approx(-2, abs=0.3)
    assert spec.intercept == pytest.approx(-1, abs=0.2)
    assert max(map(abs, (*spec.square, *spec.linear[:2], *spec.linear[3:]))) < 0.2
    assert expand(features[0]).shape == (50, 17)


def test_the_repurchase_model_learns_from_every_kth_session_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(2)
    features = [random.standard_normal((10, 6)).astype(np.float32) for _ in range(9)]
    bought = [random.random(10) < 0.5 for _ in range(9)]
    third = fit_repurchase(features[::3], bought[::3])
    monkeypatch.setattr(repurchase, "_ITEMS", 30)
    assert fit_repurchase(features, bought) == third


def test_the_repurchase_model_without_examples_is_the_default() -> None:
    assert fit_repurchase([], []) == RepurchaseSpec()
    assert fit_repurchase([np.zeros((2, 6), np.float32)], [np.zeros(2, bool)]) == RepurchaseSpec()


def test_the_default_prefers_what_is_bought_often_and_lately(shop: Shop) -> None:
    history = History(
        np.array([4, 5, 6], np.int32), np.array([1, 9, 9], np.int32), np.zeros(3), np.array([90.0, 90.0, 10.0]), 20
    )
    rows, scores = repurchase_candidates(history, 100.0, RepurchaseSpec(), 2)
    assert rows.tolist() == [5, 6]
    assert scores[0] > scores[1]


def test_a_history_is_cut_to_the_latest_items(shop: Shop) -> None:
    question = questions(shop.log, FIRST_DAY + 90, FIRST_DAY + DAYS, known=True, seed=1)[-1]
    whole, cut = (ask([question], shop.log, kept)[0].history for kept in (1000, 3))
    assert len(whole) > 3
    assert cut.rows.tolist() == whole.rows[:3].tolist()
    assert cut.sessions == whole.sessions


@given(lists, lists, lists, lists)
def test_blending_in_steps_is_blending_at_once(
    ann: np.ndarray, near: np.ndarray, history: np.ndarray, without: np.ndarray
) -> None:
    parts = [ranked_list(source, rows, SPEC) for source, rows in ((ANN, ann), (NEIGHBOURS, near), (HISTORY, history))]
    at_once = blend(parts, without=without)
    in_steps = blend([blend(parts[:2]), parts[2]], without=without)
    assert set(at_once.rows.tolist()) == {*ann.tolist(), *near.tolist(), *history.tolist()} - {*without.tolist()}
    assert len(set(at_once.rows.tolist())) == len(at_once)
    assert np.all(np.diff(at_once.scores) <= 0)
    np.testing.assert_allclose(np.sort(in_steps.scores), np.sort(at_once.scores), rtol=1e-6)
    assert dict(zip(in_steps.rows, in_steps.sources, strict=True)) == dict(
        zip(at_once.rows, at_once.sources, strict=True)
    )


def test_every_candidate_names_its_sources_and_agreement_leads() -> None:
    ann, near = np.array([7, 8], np.int32), np.array([8, 9], np.int32)
    out = blend([ranked_list(ANN, ann, SPEC), ranked_list(NEIGHBOURS, near, SPEC)])
    assert out.rows[0] == 8
    assert source_names(int(out.sources[0])) == ("ann", "neighbours")
    assert {row: source_names(int(bits)) for row, bits in zip(out.rows, out.sources, strict=True)}[9] == ("neighbours",)


def test_a_source_of_twice_the_weight_fills_twice_the_places() -> None:
    spec = BlendSpec(ann=1, history=2, offset=1)
    ann, history = np.arange(50, dtype=np.int32), np.arange(50, 100, dtype=np.int32)
    first = blend([ranked_list(ANN, ann, spec), ranked_list(HISTORY, history, spec)]).rows[:30]
    assert abs(int((first >= 50).sum()) - 20) <= 1


def test_nothing_blends_to_nothing() -> None:
    assert len(blend([])) == 0
    assert len(blend([ranked_list(ANN, np.empty(0, np.int32), SPEC)])) == 0
