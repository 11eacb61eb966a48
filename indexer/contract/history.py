"""What a user bought before: counters by item, repurchase candidates and their features. One code for job and service.

H items of one user. A history holds what happened before the moment at which it is asked; `day` is that moment, in
days since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.items import Rows

Floats = npt.NDArray[np.float32]
Days = npt.NDArray[np.float64]

FEATURES = ("times", "days_since_last", "session_share", "regularity", "overdue", "days_since_first")
_SHORTEST_GAP = 1.0
"""Days; two purchases on one day tell nothing of the next."""


@dataclass(frozen=True, slots=True)
class History:
    """Per item: rows int32 [H] (distinct, latest first), times int32 [H], first and last float64 [H], days.

    `times` counts the sessions in which the item was bought, `sessions` all sessions of the user that bought something.
    """

    rows: Rows
    times: npt.NDArray[np.int32]
    first: Days
    last: Days
    sessions: int

    def __len__(self) -> int:
        return len(self.rows)


EMPTY = History(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0), np.empty(0), 0)


def history_features(history: History, day: float) -> Floats:
    """float32 [H, 6], columns as in FEATURES, all finite.

    times               ln(1 + times)
    days_since_last     ln(1 + days)
    session_share       times / sessions, 0..1
    regularity          ln of the mean gap between purchases in days (at least 1), 0 when bought once
    overdue             ln(days since last / mean gap), -3..3; 0 when bought once
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
