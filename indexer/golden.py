"""Contexts that the index is tuned by, and the golden queries: what the service must answer as the builder did."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from indexer.contract.ann_index import AnnIndex
from indexer.contract.features import Context, Floats
from indexer.contract.manifest import GoldenQuery
from indexer.contract.sources import CANDIDATES
from indexer.events import TYPE_NUMBER
from indexer.learn.retrieval import Asked

_QUERIES = 8
_DEPTH = 10
_TYPE = TYPE_NUMBER["view"]
"""The event type of every item in a golden context."""

VectorsOf = Callable[[Sequence[Context]], Floats]
"""The session vectors float32 [B, d] of contexts."""


def contexts_of(asked: Sequence[Asked]) -> list[Context]:
    """The contexts of questions that have one."""
    return [each.question.context for each in asked if len(each.question.context)]


def contexts_to_tune_by(asked: Sequence[Asked], items: int, wanted: int, seed: int) -> list[Context]:
    """`wanted` contexts: those of questions, then single items."""
    known = contexts_of(asked)[:wanted]
    rows = np.random.default_rng(seed).integers(0, items, wanted - len(known)).astype(np.int32)
    return known + [Context(rows[[at]], np.array([_TYPE], np.uint8)) for at in range(len(rows))]


def golden_queries(index: AnnIndex, contexts: Sequence[Context], vectors_of: VectorsOf) -> tuple[GoldenQuery, ...]:
    """The first contexts, as if all their items had been viewed, and their best rows and scores."""
    viewed = [Context(each.rows, np.full(len(each), _TYPE, np.uint8)) for each in contexts[:_QUERIES]]
    scores, rows = index.search(vectors_of(viewed), CANDIDATES)
    scores, rows = scores[:, :_DEPTH], rows[:, :_DEPTH]
    found = rows >= 0
    return tuple(
        GoldenQuery(
            rows=tuple(each.rows.tolist()),
            top_rows=tuple(rows[at][found[at]].tolist()),
            top_scores=tuple(scores[at][found[at]].tolist()),
        )
        for at, each in enumerate(viewed)
    )
