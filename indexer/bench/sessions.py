"""Synthetic sessions over a synthetic catalogue, fitted to the real purchases.

A user has a few aisles, a cluster in each, favourite items, and a region. A session is of a few of those aisles; each
of its purchases is a favourite as often as real purchases are repeats, else an item of the aisle by the Zipf law. What
the source does not tell is set: the constants below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from indexer.bench.catalogue import CLUSTERS, Plan, item_ids
from indexer.bench.counted import Counted, Ints
from indexer.bench.shop import Shop

LENGTH = 2 / 3
"""Real sessions are of 9.4 purchases; these are of as much less, so that N / 8 sessions hold about N * 3 / 4."""
AISLES = 24
"""Of a user, drawn by how much each is bought."""
AT_HOME = 0.8
"""Share of a session's aisles that are the user's own."""
SAME_CLUSTER = 0.6
"""Share of purchases from the cluster that the user keeps to in the aisle."""
FAVOURITES = 20
EVENTS_PER_AISLE = 2
CHUNK = 32_768
"""Sessions of a row group."""
_SECONDS = 1_000_000
_BETWEEN = 20 * _SECONDS

SCHEMA = pa.schema(
    [
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("type", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("occurred_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("region", pa.dictionary(pa.int32(), pa.string()), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Crowd:
    """Who comes: `visits` int64 [U], cumulated sessions of the users; the source has as many sessions a user."""

    sessions: int
    visits: Ints

    @property
    def users(self) -> int:
        """How many."""
        return len(self.visits)


def crowd_of(shop: Shop, random: Counted, sessions: int) -> Crowd:
    """As many users as have that many sessions together, in the mean."""
    users = max(1, round(sessions / float(shop.visits.mean())))
    return Crowd(sessions, np.cumsum(shop.visits[random.below(len(shop.visits), "visits", np.arange(users))]))


def write_sessions(
    shop: Shop, plan: Plan, crowd: Crowd, random: Counted, path: Path, metadata: dict[str, str],
    advance: Callable[[int], None],
) -> int:  # fmt: skip
    """One row group a chunk, in the order of time; `advance` is told its sessions. Returns the number of events."""
    written = 0
    with pq.ParquetWriter(path, SCHEMA.with_metadata(metadata), compression="zstd", version="2.6") as writer:
        for sessions, table in _chunks(shop, plan, crowd, random):
            writer.write_table(table, row_group_size=table.num_rows)
            written += table.num_rows
            advance(sessions)
    return written


def _chunks(shop: Shop, plan: Plan, crowd: Crowd, random: Counted) -> Iterator[tuple[int, pa.Table]]:
    draw = _Draw(shop, plan, random)
    for begin in range(0, crowd.sessions, CHUNK):
        session = np.arange(begin, min(begin + CHUNK, crowd.sessions))
        real = shop.lengths[random.below(len(shop.lengths), "length", session)]
        length = np.maximum(1, np.round(real * LENGTH)).astype(np.int64)
        user = np.searchsorted(crowd.visits, random.below(int(crowd.visits[-1]), "user", session), side="right")
        of = np.repeat(np.arange(len(session)), length)
        at = np.arange(len(of)) - np.repeat(np.cumsum(length) - length, length)
        item = draw.items(session[of], user[of], at, length[of])
        _, first = np.unique(of * (len(plan.text) + 1) + item, return_index=True)  # a basket holds an item once
        kept = np.sort(first)
        yield len(session), _table(shop, crowd, random, session[of[kept]], user[of[kept]], at[kept], item[kept])


class _Draw:
    """Items for events: an aisle, its cluster, and a rank within it."""

    def __init__(self, shop: Shop, plan: Plan, random: Counted) -> None:
        self._shop = shop
        self._plan = plan
        self._random = random
        sizes = np.diff(plan.group_start).reshape(-1, CLUSTERS)
        weight = np.where(sizes.sum(axis=1) > 0, shop.bought, 0.0)
        self._aisles = np.cumsum(weight) / weight.sum()
        self._clusters = np.cumsum(sizes, axis=1)

    def items(self, session: Ints, user: Ints, at: Ints, length: Ints) -> Ints:
        """int64 [n]."""
        random = self._random
        again = random.share("again", session, at) < self._shop.repeated
        theme = random.below(1 + length // EVENTS_PER_AISLE, "theme", session, at)
        home = random.share("home", session, theme) < AT_HOME
        own = self._own_aisle(user, random.below(AISLES, "own aisle", session, theme))
        other = self._aisle(random.share("aisle", session, theme))
        fresh = self._item(
            user, np.where(home, own, other), random.share("cluster of", session, at), random.share("x", session, at)
        )
        favourite = (FAVOURITES * random.share("favourite", session, at) ** 2).astype(np.int64)
        known = self._item(
            user,
            self._own_aisle(user, favourite % AISLES),
            random.share("cluster of favourite", user, favourite),
            random.share("x of favourite", user, favourite),
        )
        return np.where(again, known, fresh)

    def _own_aisle(self, user: Ints, number: Ints) -> Ints:
        return self._aisle(self._random.share("aisle of user", user, number))

    def _aisle(self, share: np.ndarray) -> Ints:
        return np.searchsorted(self._aisles, share, side="right")

    def _item(self, user: Ints, aisle: Ints, cluster: np.ndarray, x: np.ndarray) -> Ints:
        """Of the user's cluster in the aisle, else of one drawn by its size; by the law of popularity."""
        sizes = self._clusters[aisle]
        own = self._random.share("cluster of user", user, aisle)
        share = np.where(cluster < SAME_CLUSTER, own, (cluster - SAME_CLUSTER) / (1 - SAME_CLUSTER))
        chosen = (sizes <= (share * sizes[:, -1]).astype(np.int64)[:, None]).sum(axis=1)
        group = aisle * CLUSTERS + chosen
        start = self._plan.group_start[group]
        count = self._plan.group_start[group + 1] - start
        rank = (self._shop.popularity.quantile(x) * count).astype(np.int64)
        items: Ints = self._plan.members[start + rank].astype(np.int64)
        return items


def _table(shop: Shop, crowd: Crowd, random: Counted, session: Ints, user: Ints, at: Ints, item: Ints) -> pa.Table:
    """Times run evenly from the source's first to its last."""
    span = (shop.last - shop.first) / crowd.sessions
    moment = shop.first + (session * span).astype(np.int64) + at * _BETWEEN
    home = random.below(len(shop.regions), "home region", user)
    session_id = _named("synthetic-s", session)
    count = len(item)
    return pa.table(
        {
            "event_id": pc.binary_join_element_wise(session_id, pc.cast(pa.array(at), pa.string()), "-"),
            "session_id": session_id,
            "user_id": _named("synthetic-u", user),
            "item_id": item_ids(item),
            "type": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["purchase"]),
            "occurred_at": pa.array(moment).cast(pa.timestamp("us", "UTC")),
            "region": pa.DictionaryArray.from_arrays(home.astype(np.int32), list(shop.regions)),
        },
        schema=SCHEMA,
    )


def _named(prefix: str, number: Ints) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pc.cast(pa.array(number), pa.string()), "")
