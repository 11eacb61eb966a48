"""The slate: which of the ranked rows are shown on this page, in which order. Pure, synchronous, cannot fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fallback.ladder import Rung
from indexer.contract.features import Floats
from indexer.contract.items import Allowed, Rows
from services.feed.slate_rules import Diversity, Places, pick

Bits = npt.NDArray[np.uint8]
_HEAD = 2
"""Pages of candidates among which the rules choose a page; more are looked at only when these do not fill it."""
_NONE = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows int32 [m] and scores float32 [m], best first, the rung that they stand on, and the bits of the sources that
    name them (see `blend.Blend`), uint8 [m]."""

    rung: Rung
    rows: Rows
    scores: Floats
    sources: Bits


@dataclass(frozen=True, slots=True)
class Slate:
    """Rows int32 [p], scores float32 [p] and source bits uint8 [p] of a page, best first; whether more could follow;
    its leading rung."""

    rows: Rows
    scores: Floats
    sources: Bits
    more: bool
    rung: Rung | None


@dataclass(frozen=True, slots=True)
class _Listed:
    """What may be shown, each row once: rows int32, scores float32 that never rise, sources and rungs uint8, [m]."""

    rows: Rows
    scores: Floats
    sources: Bits
    rungs: Bits


def build_slate(
    segments: Iterable[Segment],
    *,
    eligible: Allowed,
    hidden: Sequence[int],
    size: int,
    shown: Sequence[int] = (),
    diversity: Diversity | None = None,
) -> Slate:
    """`size` eligible rows of the segments, none twice, none of `hidden` and of `shown` (on earlier pages).

    Fewer only when there are no more. Later segments backfill earlier ones. Without `diversity` they come in the order
    in which they are given; with it, in the order of `slate_rules.pick`. Scores never rise: those of a segment are
    shifted below those before, and a row that was put behind others has at most the score of the row before it.
    `eligible[rows]` says which rows, int32 [c], may be shown: bool [c]; a segment's scores do not rise.
    """
    by = None if diversity is None or diversity.rules.off else diversity
    parts = _listed(segments, eligible, np.asarray([*hidden, *shown], np.int32))
    step = size + 1 if by is None else _HEAD * size + 1
    pool = _gather([], parts, step)
    if by is None:
        chosen: Places = np.arange(min(size, len(pool.rows)))
    else:
        pool, chosen = _choose(pool, parts, size, step, by, np.asarray(shown, np.int32))
    leading = pool.rungs[chosen[:1]] if len(chosen) else pool.rungs[:1]
    return Slate(
        pool.rows[chosen],
        np.minimum.accumulate(pool.scores[chosen]),
        pool.sources[chosen],
        more=len(pool.rows) > size,
        rung=Rung(int(leading[0])) if len(leading) else None,
    )


def _choose(
    pool: _Listed, parts: Iterator[_Listed], size: int, step: int, by: Diversity, shown: Rows
) -> tuple[_Listed, Places]:
    """The candidates that were looked at, and the places in them of those that are shown, int [at most size]."""
    chosen: Places = np.empty(0, np.intp)
    first = 0
    while len(chosen) < size and first < len(pool.rows):
        head = np.arange(first, min(first + step, len(pool.rows)))
        chosen = _more(pool, head, chosen, size, by, shown)
        first += len(head)
        if len(chosen) < size:
            pool = _gather([pool], parts, first + step)
    for looser in (replace(by, rules=by.rules.caps_alone()), None):
        if len(chosen) < size:
            left = np.setdiff1d(np.arange(len(pool.rows)), chosen)
            chosen = _more(pool, left, chosen, size, looser, shown)
    return pool, chosen


def _more(pool: _Listed, among: Places, chosen: Places, size: int, by: Diversity | None, shown: Rows) -> Places:
    """`chosen`, and those of `among` that may follow it; without rules the first of them."""
    missing = size - len(chosen)
    if by is None:
        return np.concatenate([chosen, among[:missing]])
    rows, scores = pool.rows[among], pool.scores[among]
    return np.concatenate([chosen, among[pick(rows, scores, missing, by, page=pool.rows[chosen], shown=shown)]])


def _listed(segments: Iterable[Segment], eligible: Allowed, taken: Rows) -> Iterator[_Listed]:
    """Each segment's rows that may be shown and were in none before, its scores shifted below those before."""
    floor = np.inf
    for segment in segments:
        may = eligible[segment.rows]
        if len(taken):
            may = may & ~np.isin(segment.rows, taken)
        keep = np.flatnonzero(may)
        if not len(keep):
            continue
        if len(set(segment.rows[keep].tolist())) < len(keep):
            _, first = np.unique(segment.rows[keep], return_index=True)
            keep = keep[np.sort(first)]
        kept, given = segment.rows[keep], segment.scores[keep]
        taken = np.concatenate([taken, kept])
        shifted = np.minimum(given + np.float32(min(0.0, floor - float(given[0]))), np.float32(floor))
        floor = float(shifted[-1])
        yield _Listed(kept, shifted, segment.sources[keep], np.full(len(kept), segment.rung, np.uint8))


def _gather(known: list[_Listed], parts: Iterator[_Listed], count: int) -> _Listed:
    """What is known and the parts that follow, until there are `count` or no more."""
    total = sum(len(part.rows) for part in known)
    while total < count and (part := next(parts, None)) is not None:
        known.append(part)
        total += len(part.rows)
    if not known:
        return _Listed(_NONE, np.empty(0, np.float32), np.empty(0, np.uint8), np.empty(0, np.uint8))
    if len(known) == 1:
        return known[0]
    columns = zip(*((part.rows, part.scores, part.sources, part.rungs) for part in known), strict=True)
    return _Listed(*(np.concatenate(column) for column in columns))
