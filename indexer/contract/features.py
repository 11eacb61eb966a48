"""A question's context, and the query vector where there is no session tower. One code for training and serving.

A context is what a question knows of the shopper: K items and event types, newest first. Nothing here sees a
clock, a user or an id: the same context gives the same numbers to everyone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.items import Rows
from indexer.contract.manifest import QuerySpec

Floats = npt.NDArray[np.float32]

TYPE_WEIGHT = np.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 1.0], np.float32)
"""Weight of an event by its type's number in feed.proto: impression 0; view and click 1; cart and purchase 2; and 1 for
what was done in earlier sessions (`towers.BEFORE`)."""


PURCHASE = 5
"""As in feed.proto."""


@dataclass(frozen=True, slots=True)
class Context:
    """`rows` int32 [K] and `types` uint8 [K], newest first, one entry per item (its latest event; see make_context)."""

    rows: Rows
    types: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)


EMPTY = Context(np.empty(0, np.int32), np.empty(0, np.uint8))


def make_context(rows: list[int], types: list[int], max_events: int) -> Context:
    """A context of events given newest first: the latest event of each item, at most `max_events` items.

    What was bought stays bought, whatever was done with it later in the session.
    """
    latest: dict[int, int] = {}
    for row, kind in zip(rows, types, strict=True):
        if row in latest:
            latest[row] = PURCHASE if kind == PURCHASE else latest[row]
        elif len(latest) < max_events:
            latest[row] = kind
    return Context(np.array(list(latest), np.int32), np.array(list(latest.values()), np.uint8))


def weights(context: Context, spec: QuerySpec) -> Floats:
    """float32 [K], summing to 1: decay**position times the weight of the event's type."""
    raw = (spec.decay ** np.arange(len(context), dtype=np.float32)) * TYPE_WEIGHT[context.types]
    total = raw.sum()
    return (raw / total if total > 0 else np.full(len(raw), 1 / max(1, len(raw)))).astype(np.float32)


def query_vector(vectors: npt.NDArray[np.float16], context: Context, spec: QuerySpec) -> Floats:
    """float32 [d], of length 1: the recency-weighted mean of the context's item vectors.

    `vectors` float16 [n, d], one row an item. A mean of length 0 (opposite vectors) stays 0.
    """
    mean = weights(context, spec) @ vectors[context.rows].astype(np.float32)
    norm = float(np.linalg.norm(mean))
    return np.asarray(mean / norm if norm > 0 else mean, np.float32)
