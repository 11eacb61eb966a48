"""Teachers: rankers that are too slow, or too large, to be served, and tell a student what to think of each candidate.

All candidates for the office stand behind one interface; whichever is best on validation gets it. Q questions, C
candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.learn.list_training import ListSettings, score, standardised, train_on_lists
from indexer.learn.lists import Lists, Scores
from indexer.learn.listwise import Listwise

FOLDS = 3


class Teacher(Protocol):
    """Learns from lists and scores lists; nothing of the scored lists' labels is looked at."""

    def fit(self, lists: Lists, check: Lists | None = None) -> Teacher:
        """One that has learned from `lists`, for as long as is best on `check`; without it as long as the last time."""

    def score(self, lists: Lists) -> Scores:
        """float32 [Q, C], higher is better. Raises ValueError when it has not learned anything yet."""


@dataclass(frozen=True, slots=True)
class Trees:
    """Boosted trees, LightGBM's lambdarank. `rounds`: at most with a check, exactly without."""

    rounds: int = 400
    leaves: int = 15
    rate: float = 0.05
    smallest_leaf: int = 60
    threads: int = 1
    seed: int = 1
    booster: lightgbm.Booster | None = None

    def fit(self, lists: Lists, check: Lists | None = None) -> Trees:
        """As of Teacher."""
        params = {
            "objective": "lambdarank",
            "metric": "ndcg",
            "eval_at": [10],
            "lambdarank_truncation_level": 20,
            "learning_rate": self.rate,
            "num_leaves": self.leaves,
            "min_data_in_leaf": self.smallest_leaf,
            "feature_fraction": 0.7,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "num_threads": self.threads,
            "seed": self.seed,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        data = _dataset(lists)
        if check is None:
            booster = lightgbm.train(params, data, self.rounds)
            return replace(self, booster=booster)
        stop = lightgbm.early_stopping(max(10, self.rounds // 8), verbose=False)
        booster = lightgbm.train(params, data, self.rounds, valid_sets=[_dataset(check)], callbacks=[stop])
        return replace(self, booster=booster, rounds=max(1, booster.best_iteration))

    def score(self, lists: Lists) -> Scores:
        """As of Teacher."""
        if self.booster is None:
            raise ValueError("trees: fit them before they score")
        out = np.zeros(lists.rows.shape, np.float32)
        out[lists.present] = self.booster.predict(lists.features[lists.present], num_iteration=self.rounds)
        return out


@dataclass(frozen=True, slots=True)
class Transformer:
    """The listwise transformer; the mean of `members` that differ by their seeds."""

    settings: ListSettings = field(default_factory=lambda: ListSettings(rate=1e-3))
    members: int = 2
    modules: tuple[Listwise, ...] = ()
    advance: Callable[[int], None] = lambda done: None

    def fit(self, lists: Lists, check: Lists | None = None) -> Transformer:
        """As of Teacher."""
        places = lists.context_mask.shape[1]
        modules: list[Listwise] = []
        epochs: list[int] = []
        for number in range(self.members):
            trained = train_on_lists(
                lambda mean, scale: Listwise(mean, scale, places),
                lists,
                replace(self.settings, seed=self.settings.seed + number),
                check=check,
                advance=self.advance,
            )
            modules.append(trained.module)
            epochs.append(trained.epochs)
        settings = replace(self.settings, epochs=round(float(np.mean(epochs))))
        return replace(self, modules=tuple(modules), settings=settings)

    def score(self, lists: Lists) -> Scores:
        """As of Teacher."""
        if not self.modules:
            raise ValueError("transformer: fit it before it scores")
        return _mean([score(one, lists) for one in self.modules], lists)


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of the standardised scores of others."""

    members: tuple[Teacher, ...]

    def fit(self, lists: Lists, check: Lists | None = None) -> Mean:
        """As of Teacher."""
        return Mean(tuple(each.fit(lists, check) for each in self.members))

    def score(self, lists: Lists) -> Scores:
        """As of Teacher."""
        return _mean([each.score(lists) for each in self.members], lists)


def cross_fitted(teacher: Teacher, lists: Lists, *, seed: int, folds: int = FOLDS) -> Scores:
    """Scores of each question by a teacher that did not see its user, float32 [Q, C]; users are dealt to `folds`.

    `teacher` has been fitted with a check before, so that it knows for how long to learn. Questions of nobody known are
    users of their own. Raises ValueError when there are fewer than two folds.
    """
    if folds < 2:
        raise ValueError(f"folds: at least 2 are expected, got {folds}")
    owner = lists.users.astype(np.int64)
    lone = owner < 0
    owner[lone] = owner.max(initial=0) + 1 + np.arange(lone.sum())
    names, place = np.unique(owner, return_inverse=True)
    fold = (np.random.default_rng(seed).permutation(len(names)) % folds)[place]
    out = np.zeros(lists.rows.shape, np.float32)
    for number in range(folds):
        held = fold == number
        if held.any():
            out[held] = teacher.fit(lists.take(~held)).score(lists.take(held))
    return out


def write_scores(path: Path, lists: Lists, scores: Scores) -> None:
    """Parquet: question int32 (its place in the lists), row int32, score float32; candidates in the blend's order."""
    question, place = np.nonzero(lists.present)
    columns = {
        "question": question.astype(np.int32),
        "row": lists.rows[question, place],
        "score": scores[question, place].astype(np.float32),
    }
    pq.write_table(pa.table(columns), path)


def best_teacher(fitted: Sequence[tuple[str, Teacher]], check: Lists) -> tuple[str, Teacher, dict[str, float]]:
    """The name and the teacher with the highest NDCG@10 on `check`, and the figure of each."""
    figures = {name: float(check.ndcg(teacher.score(check)).mean()) for name, teacher in fitted}
    name, teacher = max(fitted, key=lambda each: figures[each[0]])
    return name, teacher, figures


def _mean(scores: Sequence[Scores], lists: Lists) -> Scores:
    return np.asarray(np.mean([standardised(each, lists) for each in scores], axis=0), np.float32)


def _dataset(lists: Lists) -> lightgbm.Dataset:
    useful = lists.take(lists.answerable())
    there = useful.present
    return lightgbm.Dataset(
        useful.features[there], useful.positive[there].astype(np.int32), group=there.sum(axis=1), free_raw_data=True
    )
