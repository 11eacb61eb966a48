"""From three sources to the candidates of a question: first what all who ask it share, then what one user adds.

What is shared sees the session's context alone, so that its answer can be cached for all; its scores and its vector
pass through float16, so that an answer out of the cache is the one that was computed. K events of the context, newest
first; d dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.blend import ANN, HISTORY, NEIGHBOURS, Blend, BlendSpec, blend, ranked_list
from indexer.contract.candidates import Shelf
from indexer.contract.history import History, repurchase_candidates
from indexer.contract.items import Allowed, Rows
from indexer.contract.neighbours import context_neighbours

Floats = npt.NDArray[np.float32]
CANDIDATES = 500
"""That are kept of what is shared."""
NOTHING: Rows = np.empty(0, np.int32)
_FEW = 50


@dataclass(frozen=True, slots=True)
class Shared:
    """At most CANDIDATES of the context, without its own items, in the order of the blend; scores through float16.
    `vector` float32 [d], through float16: the session vector, all 0 where there is none."""

    candidates: Blend
    vector: Floats


def neighbours_of(shelf: Shelf, rows: Rows, allowed: Allowed | None) -> Rows:
    """The neighbours of items (int32 [k], newest first) that `allowed` (None: all) lets pass, best first."""
    found, _ = context_neighbours(shelf.neighbours, shelf.similarities, rows, shelf.near)
    return found if allowed is None else found[allowed[found]]


def share(ann: Rows, neighbours: Rows, context: Rows, vector: Floats, spec: BlendSpec) -> Shared:
    """What all share who ask with this context: `ann` and `neighbours` int32, best first; `vector` float32 [d]."""
    found = blend(
        [ranked_list(ANN, without(ann, context), spec), ranked_list(NEIGHBOURS, without(neighbours, context), spec)]
    )
    return Shared(through_half(first(found, CANDIDATES)), vector.astype(np.float16).astype(np.float32))


def personal(
    shared: Shared, shelf: Shelf, context: Rows, history: History, day: float, spec: BlendSpec, allowed: Allowed | None
) -> Blend:
    """The shared candidates joined by those of the user's history before `day`; what is shared where there is none."""
    again, near = history_lists(shelf, context, history, day, allowed)
    return join(shared.candidates, again, near, spec)


def history_lists(
    shelf: Shelf, context: Rows, history: History, day: float, allowed: Allowed | None
) -> tuple[Rows, Rows]:
    """What a history adds, each best first: its own items and, where nothing of the session is known, their neighbours.

    At most CANDIDATES rows each, int32, without the items of the context.
    """
    if not len(history):
        return NOTHING, NOTHING
    again, _ = repurchase_candidates(history, day, shelf.repurchase, CANDIDATES + len(context))
    again = again if allowed is None else again[allowed[again]]
    near = NOTHING if len(context) else neighbours_of(shelf, history.rows, allowed)
    return without(again, context)[:CANDIDATES], near


def join(shared: Blend, again: Rows, near: Rows, spec: BlendSpec) -> Blend:
    """The shared candidates and the two lists of `history_lists` as one; the shared ones where both are empty."""
    if not len(again) and not len(near):
        return shared
    return blend([shared, ranked_list(HISTORY, again, spec), ranked_list(NEIGHBOURS, near, spec)])


def first(whole: Blend, depth: int) -> Blend:
    """The first `depth` candidates."""
    return Blend(whole.rows[:depth], whole.scores[:depth], whole.sources[:depth])


def through_half(found: Blend) -> Blend:
    """The same with scores as float16 keeps them."""
    return Blend(found.rows, found.scores.astype(np.float16).astype(np.float32), found.sources)


def without(rows: Rows, known: Rows) -> Rows:
    """The rows, int32 [c], in order, less those of `known`, int32 [k]. For a few it costs a fiftieth of `np.isin`."""
    if len(known) > _FEW:
        return rows[~np.isin(rows, known)]
    kept = np.ones(len(rows), np.bool_)
    for row in known.tolist():
        kept &= rows != row
    return rows[kept]
