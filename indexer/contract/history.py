"""What a user bought before: counters by item, repurchase candidates and their features. One code for job and service.

H items of one user. A history holds what happened before the moment at which it is asked; `day` is that moment, in
days since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from indexer.contract.items import Rows
from indexer.contract.neighbours import top

Floats = npt.NDArray[np.float32]
Days = npt.NDArray[np.float64]

FEATURES = ("times", "days_since_last", "session_share", "gap", "overdue", "days_since_first")
_DAY_MS = 86_400_000.0
_SHORTEST_GAP = 1.0
"""Days; two purchases on one day tell nothing of the next."""


@dataclass(frozen=True, slots=True)
class History:
    """Per item: rows int32 [H] (distinct, as in `latest_first`), times int32 [H], first and last float64 [H], days.

    `times` counts the sessions in which the item was bought, `sessions` all in which the user bought something.
    """

    rows: Rows
    times: npt.NDArray[np.int32]
    first: Days
    last: Days
    sessions: int

    def __len__(self) -> int:
        return len(self.rows)

    def latest(self, count: int) -> History:
        """The `count` items that were bought last."""
        if len(self) <= count:
            return self
        return History(self.rows[:count], self.times[:count], self.first[:count], self.last[:count], self.sessions)


EMPTY = History(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0), np.empty(0), 0)


def latest_first(history: History) -> History:
    """The items in the one order that features are made of: last purchase falling, in whole milliseconds, then mixed.

    A basket's items share their moment, and logs, files and stores keep them in orders of their own. Not by row:
    rows that are near one another are often alike, and the first of a basket are to be a fair sample of it. So rows
    are multiplied by an odd number near 2**32 over the golden ratio (Knuth, The Art of Computer Programming 3, 6.4).
    """
    mixed = history.rows.astype(np.uint32) * np.uint32(2_654_435_769)
    order = np.lexsort((mixed, -np.rint(history.last * _DAY_MS)))
    return History(
        history.rows[order], history.times[order], history.first[order], history.last[order], history.sessions
    )


class RepurchaseSpec(BaseModel):
    """A logistic model of the chance that an item of the history is bought again: see `repurchase_scores`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    linear: tuple[float, ...] = Field(default=(1.0, -0.1, 2.0, 0.0, 0.0, 0.0), min_length=6, max_length=6)
    square: tuple[float, ...] = Field(default=(0.0,) * 6, min_length=6, max_length=6)
    with_times: tuple[float, ...] = Field(default=(0.0,) * 5, min_length=5, max_length=5)
    intercept: float = 0.0


def history_features(history: History, day: float) -> Floats:
    """float32 [H, 6], columns as in FEATURES, all finite.

    times               ln(1 + times)
    days_since_last     ln(1 + days)
    session_share       times / sessions, 0..1
    gap                 ln of the mean days between purchases (at least 1), 0 when bought once
    overdue             ln(days since last / mean days between), -3..3; 0 when bought once
    days_since_first    ln(1 + days)
    """
    since = np.maximum(0.0, day - history.last)
    often = history.times > 1
    gap = np.maximum(_SHORTEST_GAP, (history.last - history.first) / np.maximum(1, history.times - 1))
    out = np.empty((len(history), len(FEATURES)), np.float32)
    out[:, 0] = np.log1p(history.times)
    out[:, 1] = np.log1p(since)
    out[:, 2] = np.minimum(1.0, history.times / max(1, history.sessions))
    out[:, 3] = np.where(often, np.log(gap), 0.0)
    out[:, 4] = np.where(often, np.clip(np.log(np.maximum(since, 0.1) / gap), -3, 3), 0.0)
    out[:, 5] = np.log1p(np.maximum(0.0, day - history.first))
    return out


def expand(features: Floats) -> Floats:
    """float32 [H, 17]: the features, their squares, and the products of `times` with the other five."""
    return np.concatenate([features, features**2, features[:, :1] * features[:, 1:]], axis=1)


def repurchase_scores(features: Floats, spec: RepurchaseSpec) -> Floats:
    """float32 [H]: ln of the odds that the item is bought in the session at hand, from `history_features`."""
    weights = np.array([*spec.linear, *spec.square, *spec.with_times], np.float32)
    return np.asarray(expand(features) @ weights + np.float32(spec.intercept), np.float32)


def repurchase_candidates(history: History, day: float, spec: RepurchaseSpec, limit: int) -> tuple[Rows, Floats]:
    """At most `limit` rows of the history, int32 [c], likeliest first, with their scores float32 [c]."""
    scores = repurchase_scores(history_features(history, day), spec)
    best = top(scores, limit)
    return history.rows[best], scores[best]
