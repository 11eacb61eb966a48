from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from indexer.learn.list_training import ListSettings, soft_targets, standardised
from indexer.learn.lists import Lists, Scores, joined
from indexer.learn.teacher import Mean, Teacher, Transformer, Trees, best_teacher, cross_fitted, write_scores
from tests.learn.some_lists import make_some_lists

QUICK = Transformer(ListSettings(epochs=3, batch=32, rate=5e-3), members=1)
TREES = Trees(rounds=40, smallest_leaf=10)


@pytest.fixture(scope="module")
def past() -> Lists:
    return make_some_lists(240, seed=1)


@pytest.fixture(scope="module")
def later() -> Lists:
    return make_some_lists(120, seed=2)


@pytest.mark.parametrize("teacher", [TREES, QUICK, Mean((TREES, QUICK))], ids=["trees", "transformer", "mean"])
def test_a_teacher_learns_what_the_blend_does_not_know(teacher: Teacher, past: Lists, later: Lists) -> None:
    fitted = teacher.fit(past, later)
    scores = fitted.score(later)
    assert scores.shape == later.rows.shape
    assert np.isfinite(scores).all()
    assert later.ndcg(scores).mean() > later.ndcg(later.blend_order()).mean() + 0.2


@pytest.mark.parametrize("teacher", [TREES, QUICK], ids=["trees", "transformer"])
def test_scores_are_the_same_for_the_same_seed_and_see_no_labels(teacher: Teacher, past: Lists, later: Lists) -> None:
    blind = replace(later, positive=np.zeros_like(later.positive))
    first, second = teacher.fit(past), teacher.fit(past)
    np.testing.assert_array_equal(first.score(later), second.score(blind))


def test_learning_without_a_check_takes_as_long_as_was_best_with_it(past: Lists, later: Lists) -> None:
    fitted = TREES.fit(past, later)
    assert 1 <= fitted.rounds <= TREES.rounds
    again = fitted.fit(joined([past, later]))
    assert again.booster is not None
    assert again.booster.current_iteration() == fitted.rounds


def test_what_has_not_learned_does_not_score(later: Lists) -> None:
    for teacher in (TREES, QUICK):
        with pytest.raises(ValueError, match="fit"):
            teacher.score(later)


class Memory:
    """Knows the users that it was shown."""

    def __init__(self, seen: frozenset[float] = frozenset()) -> None:
        self.seen = seen

    def fit(self, lists: Lists, check: Lists | None = None) -> Memory:
        return Memory(frozenset(lists.users.tolist()))

    def score(self, lists: Lists) -> Scores:
        known = np.array([user in self.seen for user in lists.users], np.float32)
        return np.broadcast_to(known[:, None], lists.rows.shape).astype(np.float32)


def test_cross_fitted_scores_come_from_teachers_that_never_saw_the_user(past: Lists) -> None:
    assert not cross_fitted(Memory(), past, seed=3).any()
    with pytest.raises(ValueError, match="folds"):
        cross_fitted(Memory(), past, seed=3, folds=1)


def test_the_best_on_validation_is_the_teacher(past: Lists, later: Lists) -> None:
    name, chosen, figures = best_teacher([("none", Memory()), ("trees", TREES.fit(past, later))], later)
    assert name == "trees"
    assert isinstance(chosen, Trees)
    assert figures["trees"] > figures["none"]


def test_soft_targets_are_shares_that_keep_the_order(past: Lists) -> None:
    scores = np.random.default_rng(3).standard_normal(past.rows.shape).astype(np.float32)
    shares = soft_targets(scores, past)
    np.testing.assert_allclose(shares.sum(axis=1), 1, rtol=1e-5)
    assert not shares[~past.present].any()
    best = np.where(past.present, scores, -np.inf).argmax(axis=1)
    assert (shares.argmax(axis=1) == best).all()
    level = standardised(7 * scores + 3, past)
    np.testing.assert_allclose(level, standardised(scores, past), atol=1e-5)


def test_soft_scores_are_stored_as_parquet(tmp_path: Path, later: Lists) -> None:
    scores = np.random.default_rng(3).standard_normal(later.rows.shape).astype(np.float32)
    write_scores(tmp_path / "soft.parquet", later, scores)
    table = pq.read_table(tmp_path / "soft.parquet")
    assert table.num_rows == later.present.sum()
    back = np.zeros_like(scores)
    back[later.present] = table["score"].to_numpy()
    np.testing.assert_array_equal(back, np.where(later.present, scores, 0))
