"""What a good engineer would do without models: the rankings that ours is measured against, in the same run.

n items. Each function gives the `limit` best rows for one question, best first, without what the context holds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.history import History
from indexer.contract.items import Rows
from indexer.contract.lists import RowLists
from indexer.contract.neighbours import NOBODY, top
from indexer.learn.interactions import Interactions
from indexer.learn.questions import Question

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Neighbours:
    """ids int32 and similarities float16, as `indexer.neighbours` writes them."""

    ids: RowLists
    similarities: RowLists


@dataclass(frozen=True, slots=True)
class KnnSettings:
    """`last` items of session and history; each weighs decay**position; `repeats` is what an item brings to itself."""

    last: int
    decay: float = 0.95
    repeats: float = 0.3


@dataclass(frozen=True, slots=True)
class HeuristicSettings:
    """Counts of the whole history, halved every `half_life` days, item-kNN and popularity, added with these weights."""

    knn: KnnSettings
    count: float = 1.0
    half_life: float = 60.0
    popularity: float = 0.1


def decayed_popularity(log: Interactions, day: float, half_life: float) -> Floats:
    """float32 [n], the highest 1: the events of each item before `day`, halved every `half_life` days."""
    past = log.before(day)
    sums = np.bincount(past.rows, weights=0.5 ** ((day - past.days) / half_life), minlength=log.n_items)
    return (sums / max(float(sums.max(initial=0.0)), 1e-12)).astype(np.float32)


def popularity_ranking(question: Question, popularity: Floats, limit: int) -> Rows:
    """The most popular ones."""
    return _best(popularity.copy(), question, limit)


def item_knn(question: Question, history: History, neighbours: Neighbours, settings: KnnSettings, limit: int) -> Rows:
    """Item-kNN over the last items, repeats included."""
    scores = np.zeros(len(neighbours.ids), np.float32)
    _add_knn(scores, question, history, neighbours, settings)
    return _best(scores, question, limit)


def heuristic(
    question: Question,
    history: History,
    neighbours: Neighbours,
    popularity: Floats,
    settings: HeuristicSettings,
    limit: int,
) -> Rows:
    """Counts of the full history + item-kNN + popularity."""
    scores = settings.popularity * popularity
    _add_knn(scores, question, history, neighbours, settings.knn)
    age = np.maximum(0.0, question.day - history.last)
    counts = settings.count * np.log1p(history.times) * 0.5 ** (age / settings.half_life)
    scores[history.rows] += counts.astype(np.float32)
    return _best(scores, question, limit)


class SessionKnn:
    """VSKNN (Ludewig and Jannach, 2018): the sessions most like this one, their items weighted by likeness and idf.

    The items at hand weigh less and less, linearly by position; of the `sample` latest sessions that share one, the
    `count` most alike vote. `repeats` is what an item of the history brings to itself.
    """

    def __init__(
        self, log: Interactions, *, last: int, count: int = 200, sample: int = 2000, repeats: float = 0.3
    ) -> None:
        self._sessions = log.matrix()
        self._by_item = self._sessions.tocsc()
        counts = np.diff(self._by_item.indptr)
        self._idf = np.log(len(log) / np.maximum(1, counts)).astype(np.float32)
        self._last, self._count, self._sample, self._repeats = last, count, sample, repeats

    def rank(self, question: Question, history: History, limit: int) -> Rows:
        """As the class says."""
        rows = _latest(question, history, self._last)
        weights = (1 - np.arange(len(rows)) / max(1, len(rows))).astype(np.float32)
        scores = np.zeros(self._sessions.shape[1], np.float32)
        if len(rows):
            met = [self._by_item.indices[self._by_item.indptr[row] : self._by_item.indptr[row + 1]] for row in rows]
            sessions, place = np.unique(np.concatenate(met), return_inverse=True)
            alike = np.bincount(place, np.repeat(weights, [len(one) for one in met]), len(sessions)).astype(np.float32)
            sessions, alike = sessions[-self._sample :], alike[-self._sample :]
            best = top(alike, self._count)
            scores += np.asarray(self._sessions[sessions[best]].T @ alike[best]).ravel() * self._idf
            scores /= max(float(scores.max()), 1e-12)
            scores[rows] += self._repeats * weights
        return _best(scores, question, limit)


def _add_knn(
    scores: Floats, question: Question, history: History, neighbours: Neighbours, settings: KnnSettings
) -> None:
    rows = _latest(question, history, settings.last)
    weights = (settings.decay ** np.arange(len(rows))).astype(np.float32)
    ids = neighbours.ids[rows]
    similar = neighbours.similarities[rows].astype(np.float32) * weights[:, None]
    met = ids != NOBODY
    scores += np.bincount(ids[met], similar[met], len(scores)).astype(np.float32)
    scores[rows] += settings.repeats * weights


def _latest(question: Question, history: History, last: int) -> Rows:
    """The items of the session, then of the history, newest first."""
    older = history.rows[~np.isin(history.rows, question.context.rows)]
    return np.concatenate([question.context.rows, older])[:last]


def _best(scores: Floats, question: Question, limit: int) -> Rows:
    scores[question.context.rows] = -np.inf
    best = top(scores, limit)
    return best[np.isfinite(scores[best])].astype(np.int32)
