"""The baselines at their best: settings are chosen on a window before the one that is reported, never on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from indexer.contract.items import Mask, Rows
from indexer.contract.neighbours import neighbour_lists
from indexer.learn import baselines
from indexer.learn.baselines import HeuristicSettings, KnnSettings, Neighbours, SessionKnn
from indexer.learn.evaluate import hits, ndcg
from indexer.learn.interactions import Interactions
from indexer.learn.measures import DEPTH
from indexer.learn.retrieval import Asked, padded
from indexer.learn.tifu import Tifu, TifuSettings
from indexer.neighbours import write_neighbours
from indexer.progress import Advance

ENOUGH = 700
"""Questions, evenly spread, that settings are chosen on."""
_HALF_LIVES = (7.0, 14.0, 30.0, 60.0)
_Setting = TypeVar("_Setting")


@dataclass(frozen=True, slots=True)
class Past:
    """What baselines know as of a window's first day, `start` (days since 1970)."""

    start: float
    log: Interactions
    """The events before `start`, and those after it: the user's own, up to each question, are asked of it."""
    near: Neighbours

    @classmethod
    def of(cls, log: Interactions, start: float, advance: Advance = lambda done: None) -> Past:
        """Counts the item-kNN lists: 200 neighbours, shrinkage 5; `advance` is told how many items are done."""
        with TemporaryDirectory() as folder:
            paths = Path(folder) / "ids.npy", Path(folder) / "similarities.npy"
            count = min(200, max(1, log.n_items - 1))
            write_neighbours(log.before(start).matrix(), *paths, count=count, shrink=5, longest=300, advance=advance)
            near, similar = (np.load(path, allow_pickle=False) for path in paths)
            return cls(start, log, Neighbours(*neighbour_lists(near, similar, log.n_items)))


@dataclass(frozen=True, slots=True)
class Ranked:
    """A baseline's rankings of the reported window, DEPTH rows each, and the settings that were best before it."""

    name: str
    settings: dict[str, Any]
    rows: list[Rows]


@dataclass(frozen=True, slots=True)
class Window:
    """The questions of a window and what is known as of its first day. `available` bool [n]: others are not shown."""

    past: Past
    asked: Sequence[Asked]
    available: Mask

    def rank(self, one: Callable[[Asked], Rows]) -> list[Rows]:
        """The rankings by a function of one question, without what is not available."""
        return [rows[self.available[rows]] for rows in map(one, self.asked)]

    def thinned(self) -> Window:
        """The same with at most about ENOUGH questions."""
        return replace(self, asked=self.asked[:: max(1, len(self.asked) // ENOUGH)])


def tuned_baselines(chosen_on: Window, test: Window) -> Iterator[Ranked]:
    """Popularity, item-kNN over 20 and 100 items, VSKNN, TIFU-KNN and the heuristic, in turn, by NDCG@10.

    Raises ValueError when there is no question to choose on.
    """
    before = chosen_on.thinned()
    if not before.asked:
        raise ValueError("the baselines have no question to be tuned on: an earlier start of validation is expected")
    half = best(before, _HALF_LIVES, _popularity)
    yield Ranked("popularity", {"half_life": half}, _popularity(test, half))
    for last in (20, 100):
        knns = [KnnSettings(last, decay, own) for decay in (1.0, 0.97, 0.93, 0.85) for own in (0.03, 0.1, 0.3, 1.0)]
        knn = best(before, knns, _item_knn)
        yield Ranked(f"item_knn_{last}", asdict(knn), _item_knn(test, knn))
    sizes = list(product((20, 100), (100, 500), (0.1, 0.5)))
    size = best(before, sizes, _session_knn)
    yield Ranked("vsknn", dict(zip(("last", "count", "repeats"), size, strict=True)), _session_knn(test, size))
    tifus = [TifuSettings(alpha=own, between=far) for own in (0.7, 0.9) for far in (0.7, 0.9)]
    tifu = best(before, tifus, _tifu)
    yield Ranked("tifu_knn", asdict(tifu), _tifu(test, tifu))
    tuned = _best_heuristic(before, half)
    yield Ranked("heuristic", {**asdict(tuned), "popularity_half_life": half}, _heuristic(test, tuned, half))


def best(window: Window, settings: Sequence[_Setting], rank: Callable[[Window, _Setting], list[Rows]]) -> _Setting:
    """The setting with the highest mean NDCG@10 on the window's questions; the first of equal ones."""
    targets = [each.question.targets for each in window.asked]

    def worth(one: _Setting) -> float:
        return float(ndcg(hits(padded(rank(window, one), 10), targets), targets, 10).mean())

    return max(settings, key=worth)


def _best_heuristic(window: Window, half: float) -> HeuristicSettings:
    """By turns: what the neighbours weigh, what the counts weigh, what popularity weighs; twice."""
    tuned = HeuristicSettings(KnnSettings(100, 0.93, 0.0))
    rank: Callable[[Window, HeuristicSettings], list[Rows]] = lambda w, one: _heuristic(w, one, half)  # noqa: E731
    for _ in range(2):
        knns = [KnnSettings(*one) for one in product((20, 100), (0.97, 0.93, 0.85), (0.0, 0.1, 0.3))]
        tuned = best(window, [replace(tuned, knn=one) for one in knns], rank)
        counts = product((0.1, 0.2, 0.4, 0.8, 1.6, 3.2), (60.0, 120.0, 1e6))
        tuned = best(window, [replace(tuned, count=count, half_life=age) for count, age in counts], rank)
        tuned = best(window, [replace(tuned, popularity=one) for one in (0.01, 0.03, 0.1, 0.3, 1.0)], rank)
    return tuned


def _popularity(window: Window, half: float) -> list[Rows]:
    popular = baselines.decayed_popularity(window.past.log, window.past.start, half)
    return window.rank(lambda each: baselines.popularity_ranking(each.question, popular, DEPTH))


def _item_knn(window: Window, settings: KnnSettings) -> list[Rows]:
    near = window.past.near
    return window.rank(lambda each: baselines.item_knn(each.question, each.history, near, settings, DEPTH))


def _session_knn(window: Window, size: tuple[int, int, float]) -> list[Rows]:
    last, count, repeats = size
    model = SessionKnn(window.past.log.before(window.past.start), last=last, count=count, repeats=repeats)
    return window.rank(lambda each: model.rank(each.question, each.history, DEPTH))


def _tifu(window: Window, settings: TifuSettings) -> list[Rows]:
    users = Tifu(window.past.log, window.past.start, settings)
    return window.rank(lambda each: users.rank(each.question, DEPTH))


def _heuristic(window: Window, settings: HeuristicSettings, half: float) -> list[Rows]:
    popular = baselines.decayed_popularity(window.past.log, window.past.start, half)
    near = window.past.near
    return window.rank(lambda each: baselines.heuristic(each.question, each.history, near, popular, settings, DEPTH))
