"""Batches for the towers: from the stream of each user's events, contexts of every kind that is served.

B questions, N places, T targets. A session without a known user is a stream of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.items import Rows
from indexer.contract.towers import BEFORE
from indexer.learn.interactions import Interactions, Types

Places = npt.NDArray[np.int64]
MAX_KNOWN = 5
_SHARED = 0.3
"""Share of the questions whose history is left out, as in retrieval mode `shared`."""
_NOTHING_KNOWN = 0.1
"""Share of the questions with a history whose session has not begun: "next basket"."""


@dataclass(frozen=True, slots=True)
class Batch:
    """rows int32 [B, N], types uint8 [B, N], mask bool [B, N]; targets int32 [B, T], -1 where there is no more."""

    rows: Rows
    types: Types
    mask: npt.NDArray[np.bool_]
    targets: Rows


class Streams:
    """The events of a log ordered by user and time, with the place of the next event of the same item.

    A question of a session is a place in its stream: the context reads backwards from there, without the events whose
    item comes again before it (the latest event of an item stands for all), the targets read forwards.
    """

    def __init__(self, log: Interactions) -> None:
        session_of = log.session_of_event()
        lone = log.users < 0
        owner = log.users.astype(np.int64)
        owner[lone] = log.n_users + np.arange(lone.sum())
        order = np.argsort(owner[session_of], kind="stable")
        self.rows: Rows = log.rows[order]
        self.types: Types = log.types[order]
        stream = owner[session_of[order]]
        self._next = _next_same(stream, self.rows)
        where = np.empty(len(order), np.int64)
        where[order] = np.arange(len(order))
        lengths = np.diff(log.starts)
        kept = lengths > 0
        self.start: Places = np.zeros(len(log), np.int64)
        self.start[kept] = where[log.starts[:-1][kept]]
        self.stop: Places = self.start + lengths
        first = np.searchsorted(stream, owner, side="left")
        self._floor: Places = np.minimum(first, self.start)
        self.usable: Places = np.flatnonzero((lengths >= 2) | (kept & (self._floor < self.start)))

    def batch(self, sessions: Places, places: int, targets: int, random: np.random.Generator) -> Batch:
        """Questions about `sessions` [B]; how much of each is known is drawn anew every time."""
        start, stop, floor = self.start[sessions], self.stop[sessions], self._floor[sessions]
        has_history = floor < start
        known = 1 + np.floor(random.random(len(sessions)) * np.minimum(MAX_KNOWN, stop - start - 1)).astype(np.int64)
        none = has_history & ((stop - start < 2) | (random.random(len(sessions)) < _NOTHING_KNOWN))
        known[none] = 0
        floor = np.where(~none & (random.random(len(sessions)) < _SHARED), start, floor)
        end = start + known
        rows, types, mask = self._contexts(start, end, floor, places)
        return Batch(rows, types, mask, self._targets(end, stop, targets, random))

    def contexts(self, sessions: Places, known: Places, places: int, *, personal: bool) -> Batch:
        """Contexts of fixed questions, for evaluation; without targets."""
        start = self.start[sessions]
        floor = self._floor[sessions] if personal else start
        rows, types, mask = self._contexts(start, start + known, floor, places)
        return Batch(rows, types, mask, np.empty((len(sessions), 0), np.int32))

    def _contexts(
        self, start: Places, end: Places, floor: Places, places: int
    ) -> tuple[Rows, Types, npt.NDArray[np.bool_]]:
        at = end[:, None] - 1 - np.arange(2 * places)
        inside = at >= floor[:, None]
        at = np.maximum(at, 0)
        latest = inside & (self._next[at] >= end[:, None])
        rank = np.cumsum(latest, axis=1) - 1
        kept = latest & (rank < places)
        question, place = np.nonzero(kept)
        rows = np.zeros((len(end), places), np.int32)
        types = np.zeros((len(end), places), np.uint8)
        mask = np.zeros((len(end), places), np.bool_)
        source, target = at[question, place], (question, rank[question, place])
        rows[target] = self.rows[source]
        types[target] = np.where(source < start[question], BEFORE, self.types[source])
        mask[target] = True
        return rows, types, mask

    def _targets(self, end: Places, stop: Places, targets: int, random: np.random.Generator) -> Rows:
        """A sample without replacement, by a random shift and stride of one."""
        count = stop - end
        shift = np.floor(random.random(len(end)) * count).astype(np.int64)
        step = np.arange(targets)
        at = end[:, None] + (shift[:, None] + step) % count[:, None]
        return np.where(step < count[:, None], self.rows[np.minimum(at, len(self.rows) - 1)], -1).astype(np.int32)


def epoch(sessions: Places, size: int, random: np.random.Generator) -> Iterator[Places]:
    """The sessions in a random order, `size` at a time."""
    order = random.permutation(sessions)
    for first in range(0, len(order), size):
        yield order[first : first + size]


def _next_same(stream: Places, rows: Rows) -> Places:
    """int64 [E]: the place of the next event of the same stream and item; E where there is none."""
    order = np.lexsort((np.arange(len(rows)), rows, stream))
    following = np.full(len(rows), len(rows), np.int64)
    same = (stream[order][1:] == stream[order][:-1]) & (rows[order][1:] == rows[order][:-1])
    following[order[:-1][same]] = order[1:][same]
    return following
