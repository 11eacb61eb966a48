"""Sessions as questions with answers: what a shopper did first is the context, what came later the targets.

Time is split, sessions are whole: popularity before the training window feeds the training features, popularity
before the evaluation window the evaluation's, and no session reaches over a split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby

import numpy as np

from indexer.contract.features import Context, make_context
from indexer.contract.items import Rows
from indexer.contract.manifest import QuerySpec
from indexer.settings import RankerSettings
from indexer.workspace import Workspace

_CONTEXT_ITEMS = 5
_SESSION_EVENTS = 200
"""The first ones of a session; more than that is no shopper."""

_SPANS = """
create or replace table spans as
select session, min(first) as first, max(last) as last from (
    select session, row, min(moment) as first, max(moment) as last from events group by session, row)
group by session having count(*) >= 2;
"""
_SAMPLE = """
select session, row, type from (
    select session, row, type, row_number() over (
        partition by session order by moment, hash($seed, session, row, type)) as place
    from events join (
        select session from spans where first >= cast($start as timestamp) and last < cast($stop as timestamp)
        order by hash($seed, session), session limit $limit) using (session))
where place <= $longest order by session, place
"""
"""Items of one basket often share a timestamp and stand sorted in the file: among equals a seeded hash decides."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Training sessions lie in [train, evaluate), evaluation sessions begin at `evaluate` or later."""

    train: datetime
    evaluate: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Example:
    """`context`: the first 1 to 5 items of a session. `targets` int32 [t], t >= 1: the items of what follows."""

    context: Context
    targets: Rows


def split(work: Workspace, settings: RankerSettings) -> Windows | None:
    """The windows, by the beginnings of the sessions with two items or more; None when there is no such session."""
    work.sql.execute(_SPANS)
    shares = [1 - settings.evaluate_share - settings.train_share, 1 - settings.evaluate_share]
    ((cuts, end),) = work.sql.execute("select quantile_disc(first, $1), max(last) from spans", [shares]).fetchall()
    if cuts is None:
        return None
    train, evaluate = (cut.replace(tzinfo=UTC) for cut in cuts)
    return Windows(train, evaluate, end.replace(tzinfo=UTC))


def sample(
    work: Workspace, start: datetime, stop: datetime | None, limit: int, query: QuerySpec, seed: int
) -> list[Example]:
    """At most `limit` sessions that begin at `start` or later and end before `stop` (None: whenever); needs `split`."""
    forever = datetime.max.replace(tzinfo=UTC)
    rows = work.sql.execute(
        _SAMPLE,
        {
            "seed": seed,
            "start": start,
            "stop": stop or forever,
            "limit": limit,
            "longest": _SESSION_EVENTS,
        },
    ).fetchall()
    random = np.random.default_rng(seed)
    return list(_examples(rows, query, random))


def _examples(events: list[tuple[int, int, int]], query: QuerySpec, random: np.random.Generator) -> Iterator[Example]:
    for _, group in groupby(events, key=lambda event: event[0]):
        session = [(row, kind) for _, row, kind in group]
        firsts = _first_places([row for row, _ in session])
        if len(firsts) < 2:  # the second item came after the 200th event
            continue
        cut = firsts[random.integers(1, min(_CONTEXT_ITEMS, len(firsts) - 1), endpoint=True)]
        rows, kinds = zip(*reversed(session[:cut]), strict=True)
        targets = np.unique(np.array([row for row, _ in session[cut:]], np.int32))
        yield Example(make_context(list(rows), list(kinds), query.max_events), targets)


def _first_places(rows: list[int]) -> list[int]:
    """Where each distinct row stands for the first time."""
    places: dict[int, int] = {}
    for place, row in enumerate(rows):
        places.setdefault(row, place)
    return list(places.values())
