"""The slate: which of the ranked rows are shown on this page. Pure, synchronous, cannot fail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fallback.ladder import Rung
from indexer.contract.features import Floats
from indexer.contract.items import Mask, Rows


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows int32 [m] and scores float32 [m], best first, and the rung that they stand on."""

    rung: Rung
    rows: Rows
    scores: Floats


@dataclass(frozen=True, slots=True)
class Slate:
    """Rows int32 [p] and scores float32 [p] of a page, best first; whether more could follow; its leading rung."""

    rows: Rows
    scores: Floats
    more: bool
    rung: Rung | None


def build_slate(segments: Iterable[Segment], *, eligible: Mask, hidden: Sequence[int], size: int) -> Slate:
    """The first `size` eligible rows of the segments in turn, none twice, none of `hidden`.

    Later segments backfill earlier ones; their scores are shifted below those before, so that scores never rise.
    Rows are within the length of `eligible`; a segment's scores do not rise.
    """
    taken = np.asarray(hidden, np.int32)
    rows: list[Rows] = []
    scores: list[Floats] = []
    rung: Rung | None = None
    count = 0
    floor = np.inf
    for segment in segments:
        keep = np.flatnonzero(eligible[segment.rows] & ~np.isin(segment.rows, taken))
        if not len(keep):
            continue
        _, first = np.unique(segment.rows[keep], return_index=True)
        keep = keep[np.sort(first)]
        kept, given = segment.rows[keep], segment.scores[keep]
        taken = np.concatenate([taken, kept])
        rung = segment.rung if rung is None else rung
        shifted = np.minimum(given + np.float32(min(0.0, floor - float(given[0]))), np.float32(floor))
        rows.append(kept)
        scores.append(shifted)
        floor = float(shifted[-1])
        count += len(kept)
        if count > size:
            break
    if not rows:
        return Slate(np.empty(0, np.int32), np.empty(0, np.float32), more=False, rung=None)
    return Slate(np.concatenate(rows)[:size], np.concatenate(scores)[:size], more=count > size, rung=rung)
