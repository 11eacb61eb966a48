"""Scoring a batch of work: shared candidates, one person's among them, rerank. Runs on the compute thread."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fallback.ladder import Reason, Rung
from indexer.contract.blend import Blend
from indexer.contract.candidates import Shopper, ranker_tensors
from indexer.contract.features import Floats
from indexer.contract.sources import Shared, first, personal
from services.errors import NotScored
from services.feed.answer import Answer, through_half
from services.feed.candidates import apart, find_shared, grouped
from services.feed.loaded import Loaded
from services.feed.ranker import Ranker
from services.feed.work import Work


@dataclass(frozen=True, slots=True)
class Retrieved:
    """What the first stage found: candidates and session vector, whether vector retrieval took part, and the
    milliseconds that it took for the whole batch."""

    shared: Shared
    searched: bool
    took_ms: float


@dataclass(frozen=True, slots=True)
class Scored:
    """What a piece of work came to, and the time that its batch took.

    The answer to work for a person is theirs alone: its scores are not rounded.
    """

    answer: Answer
    retrieve_ms: float
    rerank_ms: float


def shortfalls(answer: Answer, loaded: Loaded) -> tuple[Reason, ...]:
    """Why a fresh answer is less than it could be; empty: it is not, and may be kept."""
    said = {
        Reason.RETRIEVAL_FAILED if loaded.searches else Reason.NO_INDEX: not answer.searched,
        Reason.NO_NEIGHBOURS: not loaded.near,
        Reason.RERANK_FAILED if loaded.ranker else Reason.NO_RANKER: answer.rung is Rung.RETRIEVED,
    }
    return tuple(reason for reason, so in said.items() if so)


def score(works: Sequence[Work]) -> list[Scored]:
    """Both stages, one after the other. Raises NotScored as `retrieve` does."""
    return rerank(works, retrieve(works))


def retrieve(works: Sequence[Work]) -> list[Retrieved]:
    """The first stage: the shared candidates of each piece of work, in order, found together for all that do not bring
    them along. What fails lowers the rung of the work that it fails for.

    Raises NotScored for a snapshot of which only popularity is left.
    """
    if any(work.question.loaded.shelf is None for work in works):
        raise NotScored(Reason.NO_INDEX)
    start = time.perf_counter()
    new = iter(find_shared([work for work in works if work.answer is None]))
    shared = [next(new) if work.answer is None else (work.answer.shared, work.answer.searched) for work in works]
    took = (time.perf_counter() - start) * 1e3
    return [Retrieved(each, searched, took) for each, searched in shared]


def rerank(works: Sequence[Work], retrieved: Sequence[Retrieved]) -> list[Scored]:
    """The second stage: joined by what is personal, and reranked. One result per piece of work, in order."""
    start = time.perf_counter()
    shared = [each.shared for each in retrieved]
    candidates = [_candidates(work, each) for work, each in zip(works, shared, strict=True)]
    scores = _scores(works, shared, candidates)
    answers = [
        _answer(work, Shared(found, each.shared.vector), given, each.searched)
        for work, each, found, given in zip(works, retrieved, candidates, scores, strict=True)
    ]
    took = (time.perf_counter() - start) * 1e3
    return [Scored(answer, each.took_ms, took) for answer, each in zip(answers, retrieved, strict=True)]


def _candidates(work: Work, shared: Shared) -> Blend:
    if work.person is None:
        return shared.candidates
    asked = work.question
    sources = asked.loaded.manifest.sources
    assert asked.loaded.shelf is not None
    return personal(
        shared,
        asked.loaded.shelf,
        asked.context.rows,
        work.history,
        work.day,
        sources.personal if work.alone else sources.shared,
        asked.loaded.allowed(asked.category, asked.region),
    )


def _scores(works: Sequence[Work], shared: Sequence[Shared], candidates: Sequence[Blend]) -> list[Floats | None]:
    """The ranker's scores of the first candidates; None where there is no ranker, or where it failed."""
    out: dict[int, Floats | None] = {}
    # All of the batch wait for a strong ranker, those of other snapshots too.
    expires_at = min((work.expires_at for work in works), default=math.inf)
    for places in grouped(range(len(works)), lambda at: id(works[at].question.loaded)):
        loaded = works[places[0]].question.loaded
        ranker = loaded.ranker
        if ranker is None:
            continue

        def run(some: list[int], ranker: Ranker = ranker) -> list[Floats]:
            return _rerank(ranker, [(works[at], shared[at], candidates[at]) for at in some], expires_at)

        out |= apart(places, run, f"rerank by {loaded.ranker_id} of snapshot {loaded.id} failed")
    return [out.get(at) for at in range(len(works))]


def _rerank(ranker: Ranker, asked: Sequence[tuple[Work, Shared, Blend]], expires_at: float) -> list[Floats]:
    """Work of one snapshot is reranked together; what is doubtful by the strong ranker, if it has one, too."""
    shelf = asked[0][0].question.loaded.shelf
    assert shelf is not None
    heads = [first(found, ranker.spec.depth) for _, _, found in asked]
    shoppers = [Shopper(work.question.context, work.history, work.day, shared.vector) for work, shared, _ in asked]
    tensors = ranker_tensors(shelf, shoppers, heads, ranker.spec.places)
    fast = ranker.score(tensors, [len(head) for head in heads])
    cascade = asked[0][0].question.loaded.cascade
    if cascade is None:
        return fast
    # What the strong ranker says of a shared answer is cached like any other: it depends on the question, and on the
    # time that was left only as far as the fast ranker's order stands where there was none.
    return cascade.improved(fast, tensors, expires_at, time.monotonic)


def _answer(work: Work, found: Shared, given: Floats | None, searched: bool) -> Answer:
    if given is None:
        return Answer(found, np.empty(0, np.uint16), np.empty(0, np.float32), searched)
    order = np.argsort(-given, kind="stable")
    scores = given[order] if work.person else through_half(given[order])
    return Answer(found, order.astype(np.uint16), scores, searched)
