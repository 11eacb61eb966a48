"""Shopping events as arrays that models are trained on: sessions with their items, users with their sessions.

E events, S sessions, U users. Sessions are ordered by their first event, the events of a session by time. Items that
share a timestamp are ordered by a seeded hash: files sort the lines of one basket, and that order would be a leak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

from indexer.contract.features import PURCHASE
from indexer.contract.items import Rows

Types = npt.NDArray[np.uint8]
Days = npt.NDArray[np.float64]
Offsets = npt.NDArray[np.int64]
Csr: TypeAlias = sparse.csr_matrix

ANONYMOUS = -1
_DAY_NS = 86_400e9


@dataclass(frozen=True, slots=True)
class Interactions:
    """Events after one another; the latest event of an item in a session stands for all of them, as a purchase if
    one of them was one.

    rows int32 [E], types uint8 [E] (numbers of feed.proto), days float64 [E] (since 1970), session s has the events
    `starts[s]` to `starts[s + 1]`, int64 [S + 1], ascending by `begun` float64 [S], and belongs to `users[s]`
    int32 [S] (-1: nobody known).
    """

    rows: Rows
    types: Types
    days: Days
    starts: Offsets
    begun: Days
    users: Rows
    n_items: int
    n_users: int

    def __len__(self) -> int:
        return len(self.begun)

    def session(self, number: int) -> slice:
        """Where the events of a session stand."""
        return slice(int(self.starts[number]), int(self.starts[number + 1]))

    def before(self, day: float) -> Interactions:
        """The sessions that began before `day`, without the events that came at `day` or later."""
        count = int(np.searchsorted(self.begun, day, side="left"))
        stop = int(self.starts[count])
        keep = self.days[:stop] < day
        kept_before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])
        return Interactions(
            self.rows[:stop][keep],
            self.types[:stop][keep],
            self.days[:stop][keep],
            kept_before[self.starts[: count + 1]],
            self.begun[:count],
            self.users[:count],
            self.n_items,
            self.n_users,
        )

    def session_of_event(self) -> Rows:
        """int32 [E]: the session of each event."""
        return np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.starts))

    def matrix(self) -> Csr:
        """Sessions by items, float32 CSR [S, n_items], 1 where the session has the item."""
        ones = np.ones(len(self.rows), np.float32)
        return sparse.csr_matrix((ones, self.rows, self.starts), shape=(len(self), self.n_items))

    def sessions_of_users(self) -> tuple[Rows, Offsets]:
        """Sessions of each user in order of time: numbers int32 [.], offsets int64 [U + 1]."""
        known = np.flatnonzero(self.users >= 0).astype(np.int32)
        order = known[np.argsort(self.users[known], kind="stable")]
        counts = np.bincount(self.users[known], minlength=self.n_users)
        return order, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


def interactions(
    rows: Rows,
    types: Types,
    users: npt.NDArray[np.int64],
    sessions: npt.NDArray[np.uint64] | npt.NDArray[np.int64],
    occurred_at: npt.NDArray[np.datetime64],
    *,
    n_items: int,
    seed: int,
) -> Interactions:
    """From event columns, all [E] and in any order. `users`: any number, -1 where nobody is known.

    A session belongs to the user of its last event. Raises ValueError when the columns differ in length or a row is
    not of the catalogue.
    """
    if len({len(rows), len(types), len(users), len(sessions), len(occurred_at)}) != 1:
        raise ValueError("rows, types, users, sessions, occurred_at: columns of one length are expected")
    if len(rows) and (rows.min() < 0 or rows.max() >= n_items):
        raise ValueError(f"rows: values in 0..{n_items - 1} are expected, got {rows.min()}..{rows.max()}")
    names, session = np.unique(sessions, return_inverse=True)
    days = occurred_at.astype("datetime64[ns]").astype(np.int64) / _DAY_NS
    order = np.lexsort((tie_break(rows, session, seed), days, session))
    last, bought = _latest(session[order], rows[order], types[order] == PURCHASE)
    types = np.where(bought, np.uint8(PURCHASE), types[order][last])
    order = order[last]
    first = np.full(len(names), np.inf)
    np.minimum.at(first, session, days)
    place = np.empty(len(names), np.int64)
    by_time = np.argsort(first, kind="stable")
    place[by_time] = np.arange(len(names))
    by_session = np.argsort(place[session[order]], kind="stable")
    order, types = order[by_session], types[by_session]
    owner = np.full(len(names), ANONYMOUS, np.int64)
    owner[place[session[order]]] = users[order]
    known = np.unique(owner[owner >= 0])
    return Interactions(
        rows[order].astype(np.int32),
        types.astype(np.uint8),
        days[order],
        np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(place[session[order]], minlength=len(names)))]),
        first[by_time],
        np.where(owner >= 0, np.searchsorted(known, owner), ANONYMOUS).astype(np.int32),
        n_items,
        len(known),
    )


def tie_break(rows: Rows, sessions: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.uint64]:
    """A hash of item, session and seed (splitmix64), uint64 [E]: the order among events of the same moment."""
    mixed = rows.astype(np.uint64) + (sessions.astype(np.uint64) << np.uint64(32))
    mixed ^= np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)), np.uint64)


def _latest(
    sessions: npt.NDArray[np.int64], rows: Rows, purchase: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Places of the last event of each (session, item), ascending, and whether the item was bought in the session."""
    place = np.arange(len(rows))
    order = np.lexsort((place, rows, sessions))
    last = np.ones(len(rows), bool)
    last[:-1] = (sessions[order][1:] != sessions[order][:-1]) | (rows[order][1:] != rows[order][:-1])
    begins = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1]) if len(rows) else np.empty(0, np.int64)
    bought = np.logical_or.reduceat(purchase[order], begins) if len(rows) else np.empty(0, bool)
    places = order[last]
    by_place = np.argsort(places)
    return places[by_place], bought[by_place]
