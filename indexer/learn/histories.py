"""Histories out of a log: what the service's counters would hold at a given moment."""

from __future__ import annotations

import numpy as np

from indexer.contract.features import PURCHASE
from indexer.contract.history import EMPTY, History, latest_first
from indexer.learn.interactions import Interactions


class Histories:
    """The purchases of each user in order of time."""

    def __init__(self, log: Interactions) -> None:
        session_of = log.session_of_event()
        bought = np.flatnonzero((log.types == PURCHASE) & (log.users[session_of] >= 0))
        owner = log.users[session_of[bought]]
        order = bought[np.argsort(owner, kind="stable")]
        self._rows = log.rows[order]
        self._days = log.days[order]
        self._sessions = session_of[order]
        self._starts = np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=log.n_users))])

    def at(self, user: int, session: int, day: float) -> History:
        """What `user` (-1: nobody) bought before `day`, and before the session of that number began."""
        if user < 0:
            return EMPTY
        span = slice(int(self._starts[user]), int(self._starts[user + 1]))
        before = (self._days[span] < day) & (self._sessions[span] < session)
        rows = self._rows[span][before]
        days = self._days[span][before]
        distinct, which, times = np.unique(rows, return_inverse=True, return_counts=True)
        oldest = np.full(len(distinct), np.inf)
        np.minimum.at(oldest, which, days)
        latest = np.full(len(distinct), -np.inf)
        np.maximum.at(latest, which, days)
        sessions = len(np.unique(self._sessions[span][before]))
        return latest_first(History(distinct.astype(np.int32), times.astype(np.int32), oldest, latest, sessions))
