"""A question's ranking: from the cache, or scored in the queue, or none, and then the ladder answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import structlog

from cache.feed_cache import Computed, ComputeFailed, FeedCache, Found
from fallback.ladder import Reason, Rung
from services.deadline import Clock, Deadline
from services.domain import CacheOutcome, Priority
from services.errors import NotScored
from services.feed.admission import Gate
from services.feed.answer import Answer, pack, unpack
from services.feed.batcher import Batcher
from services.feed.question import Question
from services.feed.slate import Segment
from services.feed.trace import Trace

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Segments, best first (none: popularity is all there is), and what the cache had to do with them."""

    segments: tuple[Segment, ...] = ()
    cache: CacheOutcome = CacheOutcome.UNUSED
    age_s: float = 0.0

    def with_backfill(self, question: Question) -> Iterator[Segment]:
        """The segments, the popularity lists in the order of the ladder, then whatever else may be shown."""
        loaded, region, category = question.loaded, question.region, question.category
        yield from self.segments
        for rung, rows, scores in loaded.popular.ladder(region, category):
            yield Segment(rung, rows, scores)
        yield Segment(Rung.POPULAR_CATEGORY if category else Rung.POPULAR, *loaded.tail(category, region))


class Rankings:
    """Ranks questions. One scoring has `scoring_s` seconds, whoever asked first: others may have joined it."""

    def __init__(self, *, cache: FeedCache, gate: Gate, batcher: Batcher, scoring_s: float, clock: Clock) -> None:
        self._cache = cache
        self._gate = gate
        self._batcher = batcher
        self._scoring_s = scoring_s
        self._clock = clock

    async def rank(self, question: Question, priority: Priority, deadline: Deadline, trace: Trace) -> Ranking:
        """The ranking; without segments when there is nothing to rank by, no time, no permit, or a failure.

        Why is noted in the trace. A ranking that expired is better than none.
        """
        if not len(question.context):
            trace.note(Reason.NO_CONTEXT)
            return Ranking()
        if question.loaded.retriever is None:
            return Ranking()
        try:
            with trace.stage("cache"):
                async with asyncio.timeout(deadline.left()):
                    compute = partial(self._score, question, priority, trace)
                    found = await self._cache.get(question.key, compute, lane=bytes([priority]))
        except TimeoutError:
            trace.note(Reason.NO_TIME)
            return _expired(question, await self._cache.peek(question.key))
        except ComputeFailed as failure:
            trace.note(_reason_of(failure))
            if failure.stale is not None:
                self._cache.took_stale()
            return _expired(question, failure.stale)
        if found.unavailable is not None:
            trace.note(Reason.CACHE_UNAVAILABLE)
        return _found(question, found, trace)

    async def _score(self, question: Question, priority: Priority, trace: Trace) -> Computed:
        permit = self._gate.try_acquire(priority)
        if permit is None:
            raise NotScored(Reason.ADMISSION)
        scored, waited_s = await self._batcher.submit(permit, question, self._clock() + self._scoring_s)
        trace.took("queue", waited_s * 1e3, out_of="cache")
        trace.took("retrieve", scored.retrieve_ms, out_of="cache")
        trace.took("rerank", scored.rerank_ms, out_of="cache")
        return Computed(pack(scored.answer), storable=scored.rung is Rung.RANKED)


def _found(question: Question, found: Found, trace: Trace) -> Ranking:
    answer = unpack(found.payload, question.loaded.items.count)
    outcome = CacheOutcome[found.outcome.name]
    if len(answer.ranked):
        return Ranking(_segments(answer, Rung.RANKED), outcome, found.age_s)
    if not len(answer.rows):  # Nothing may be shown here: there was nothing to rerank.
        return Ranking((), outcome, found.age_s)
    trace.note(Reason.RERANK_FAILED if question.loaded.ranker else Reason.NO_RANKER)
    return Ranking((Segment(Rung.RETRIEVED, answer.rows, answer.scores),), outcome, found.age_s)


def _expired(question: Question, found: Found | None) -> Ranking:
    if found is None:
        return Ranking()
    answer = unpack(found.payload, question.loaded.items.count)
    return Ranking(_segments(answer, Rung.STALE), CacheOutcome.STALE, found.age_s)


def _segments(answer: Answer, rung: Rung) -> tuple[Segment, Segment]:
    rows, scores, reserve_rows, reserve_scores = answer.ordered()
    return Segment(rung, rows, scores), Segment(rung, reserve_rows, reserve_scores)


def _reason_of(failure: ComputeFailed) -> Reason:
    if isinstance(failure.error, NotScored):
        return failure.error.reason
    log.error("scoring failed", error=repr(failure.error))
    return Reason.SCORING_FAILED
