"""The shared candidates of a batch of questions: session vectors, vector retrieval, neighbours. On the compute thread.

Where vectors cannot be searched, popularity stands in: the answer says so, and is not kept.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import structlog

from indexer.contract.blend import NEIGHBOURS, POPULARITY, BlendSpec, blend, ranked_list
from indexer.contract.candidates import Shelf
from indexer.contract.features import Context, Floats
from indexer.contract.items import Allowed, Rows
from indexer.contract.sources import CANDIDATES, NOTHING, Shared, first, neighbours_of, share, through_half, without
from indexer.contract.towers import tower_context
from services.feed.work import Work

log = structlog.get_logger()
_Part = TypeVar("_Part")


def find_shared(works: Sequence[Work]) -> list[tuple[Shared, bool]]:
    """What all share of each piece of work, and whether vector retrieval took part. Their snapshots have a shelf."""
    vectors: dict[int, Floats | None] = {}
    for places in grouped(range(len(works)), lambda at: id(works[at].question.loaded)):
        failed = f"session vectors of snapshot {works[places[0]].question.loaded.id} failed"
        vectors |= apart(places, lambda some: _vectors([works[at] for at in some]), failed)
    nearest: dict[int, Rows | None] = {}
    for places in grouped(range(len(works)), lambda at: _filter(works[at])):
        known = [at for at in places if vectors[at] is not None]
        failed = f"retrieval from snapshot {works[places[0]].question.loaded.id} failed"
        nearest |= apart(known, lambda some: _nearest([works[at] for at in some], [vectors[at] for at in some]), failed)
    return [_shared(work, vectors[at], nearest.get(at)) for at, work in enumerate(works)]


def grouped(places: Iterable[int], key: Callable[[int], Hashable]) -> list[list[int]]:
    """Places of equal keys together, in order."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for at in places:
        groups[key(at)].append(at)
    return list(groups.values())


def apart(places: list[int], run: Callable[[list[int]], Sequence[_Part]], failed: str) -> dict[int, _Part | None]:
    """What `run` gives for each place; None, logged, for those for which it fails when they are asked alone."""
    try:
        return dict(zip(places, run(places) if places else [], strict=True))
    except Exception as error:  # noqa: BLE001 - FAISS and onnxruntime raise kinds of their own that share no base
        if len(places) == 1:
            log.error(failed, error=repr(error))
            return {places[0]: None}
    return {at: part for each in places for at, part in apart([each], run, failed).items()}


def _filter(work: Work) -> tuple[int, str, str]:
    return id(work.question.loaded), work.question.category, work.question.region


def _vectors(works: Sequence[Work]) -> Sequence[Floats | None]:
    """Session vectors float32 [d] of one snapshot's questions, in one run; None where it has no encoder."""
    loaded = works[0].question.loaded
    if loaded.encode is None:
        return [None] * len(works)
    return list(loaded.encode([_context(work) for work in works]))


def _context(work: Work) -> Context:
    """What the session vector is made of: the history takes part where the work is for one person alone."""
    before = work.history.rows if work.alone else NOTHING
    return tower_context(work.question.context, before, work.question.loaded.manifest.query.places)


def _nearest(works: Sequence[Work], vectors: Sequence[Floats | None]) -> Sequence[Rows | None]:
    """The CANDIDATES nearest rows of questions with one filter, without those of the context; none to a vector of 0."""
    asked = works[0].question
    if asked.loaded.retriever is None:
        return [None] * len(works)
    queries = np.stack([vector for vector in vectors if vector is not None])
    more = max(len(work.question.context) for work in works)
    found = asked.loaded.retriever.search(queries, asked.loaded.among(asked.category, asked.region), CANDIDATES + more)
    return [
        without(rows, work.question.context.rows)[:CANDIDATES] if query.any() else NOTHING
        for work, query, (rows, _) in zip(works, queries, found, strict=True)
    ]


def _shared(work: Work, vector: Floats | None, nearest: Rows | None) -> tuple[Shared, bool]:
    asked = work.question
    loaded, context = asked.loaded, asked.context.rows
    assert loaded.shelf is not None
    allowed = loaded.allowed(asked.category, asked.region)
    spec = loaded.manifest.sources.personal if work.alone else loaded.manifest.sources.shared
    if vector is None:
        vector = np.zeros(loaded.manifest.dimension, np.float32)
    if nearest is not None:
        near = neighbours_of(loaded.shelf, context, allowed)
        return share(nearest, near, context, vector, spec), True
    popular = loaded.popular_rows(asked.category, asked.region, CANDIDATES + len(context))
    return _without_search(loaded.shelf, popular, context, allowed, vector, spec), False


def _without_search(
    shelf: Shelf, popular: Rows, context: Rows, allowed: Allowed, vector: Floats, spec: BlendSpec
) -> Shared:
    """As `sources.share`, with popular items in place of the nearest ones."""
    parts = ((POPULARITY, popular), (NEIGHBOURS, neighbours_of(shelf, context, allowed)))
    found = blend([ranked_list(source, without(rows, context), spec) for source, rows in parts])
    return Shared(through_half(first(found, CANDIDATES)), vector.astype(np.float16).astype(np.float32))
