"""A question's ranking: from the cache, or scored in the queue, or none, and then the ladder answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import structlog

from cache.counters import Outcome
from cache.feed_cache import Computed, ComputeFailed, FeedCache, Found
from fallback.ladder import Reason, Rung
from indexer.contract.blend import POPULARITY
from indexer.contract.features import Floats
from indexer.contract.items import Rows
from indexer.contract.towers import Mode
from services.deadline import Clock, Deadline
from services.domain import CacheOutcome, Priority
from services.errors import NotScored
from services.feed.admission import Gate
from services.feed.answer import Answer, pack, unpack
from services.feed.batcher import Batcher
from services.feed.question import Question
from services.feed.rerank import Scored, shortfalls
from services.feed.slate import Segment
from services.feed.trace import Trace
from services.feed.work import Person, Work

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ranking:
    """Segments, best first (none: popularity is all there is), what the cache had to do with them, and how many items
    of the person's history took part."""

    segments: tuple[Segment, ...] = ()
    cache: CacheOutcome = CacheOutcome.UNUSED
    age_s: float = 0.0
    history_items: int = 0

    def with_backfill(self, question: Question) -> Iterator[Segment]:
        """The segments, the popularity lists in the order of the ladder, then whatever else may be shown."""
        loaded, region, category = question.loaded, question.region, question.category
        yield from self.segments
        for rung, rows, scores in loaded.popular.ladder(region, category):
            yield _popular(rung, rows, scores)
        yield _popular(Rung.POPULAR_CATEGORY if category else Rung.POPULAR, *loaded.tail(category, region))


class Rankings:
    """Ranks questions. One shared scoring has `scoring_s` seconds, whoever asked first: others may have joined it.

    `mode` "shared": what all share comes out of the cache, and the history is joined in a small step of its own. Mode
    "personal": the history enters retrieval, so that nothing is shared and nothing is cached.
    """

    def __init__(
        self, *, cache: FeedCache, gate: Gate, batcher: Batcher, scoring_s: float, mode: Mode, clock: Clock
    ) -> None:
        self._cache = cache
        self._gate = gate
        self._batcher = batcher
        self._scoring_s = scoring_s
        self._mode = mode
        self._clock = clock

    def open_to(self, priority: Priority) -> bool:
        """Whether the door is open: whether a full scoring would be let in now."""
        return self._gate.admits(priority)

    async def kept(self, question: Question, trace: Trace) -> Ranking:
        """What this process keeps of the question, fresh or expired; nothing is asked of anybody and nothing scored."""
        if not len(question.context) or question.loaded.shelf is None or self._mode == "personal":
            return Ranking()
        with trace.stage("cache"):
            found = await self._cache.peek(question.key)
        if found is None or found.outcome is Outcome.STALE:
            return _expired(question, found)
        return Ranking(_segments(_unpacked(question, found)), CacheOutcome[found.outcome.name], found.age_s)

    async def rank(
        self, question: Question, person: Person, priority: Priority, deadline: Deadline, trace: Trace
    ) -> Ranking:
        """The ranking; without segments when there is nothing to rank by, no time, no permit, or a failure.

        Why is noted in the trace. A ranking that expired is better than none.
        """
        if not len(question.context) and not len(person.history):
            trace.note(Reason.NO_CONTEXT)
            return Ranking()
        if question.loaded.shelf is None:
            return Ranking()
        if self._mode == "personal":
            return await self._alone(question, person, priority, deadline, trace)
        fresh: list[tuple[bytes, Answer]] = []
        try:
            with trace.stage("cache"):
                async with asyncio.timeout(deadline.left()):
                    compute = partial(self._compute, question, priority, trace, fresh)
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
        packed, answer = fresh[0] if fresh else (b"", None)
        if answer is None or packed is not found.payload:
            answer = _unpacked(question, found)
        own = await self._personal(Work(question, person, answer), priority, deadline, trace)
        served = answer if own is None else own
        trace.note(*shortfalls(served, question.loaded))
        outcome = CacheOutcome[found.outcome.name]
        return Ranking(_segments(served), outcome, found.age_s, 0 if own is None else len(person.history))

    async def _compute(
        self, question: Question, priority: Priority, trace: Trace, fresh: list[tuple[bytes, Answer]]
    ) -> Computed:
        """What all share who ask the question. It goes to `fresh` as well: who computed it need not unpack it."""
        scored = await self._score(Work(question), priority, self._scoring_s, trace, stage="cache")
        packed = pack(scored.answer)
        fresh.append((packed, scored.answer))
        return Computed(packed, storable=not shortfalls(scored.answer, question.loaded))

    async def _personal(self, work: Work, priority: Priority, deadline: Deadline, trace: Trace) -> Answer | None:
        """The shared answer joined by the person's history; None, with the reason noted, when that cannot be had."""
        if not len(work.history):
            return None
        assert work.answer is not None
        try:
            with trace.stage("personal"):
                scored = await self._score(work, priority, deadline.left(), trace, stage="personal")
        except NotScored as failure:
            trace.note(failure.reason)
            return None
        if scored.answer.rung <= work.answer.rung or not len(work.answer.shared.candidates):
            return scored.answer
        trace.note(*shortfalls(scored.answer, work.question.loaded))
        return None

    async def _alone(
        self, question: Question, person: Person, priority: Priority, deadline: Deadline, trace: Trace
    ) -> Ranking:
        """Everything for one person, at once."""
        try:
            with trace.stage("personal"):
                scored = await self._score(Work(question, person), priority, deadline.left(), trace, stage="personal")
        except NotScored as failure:
            trace.note(failure.reason)
            return Ranking()
        trace.note(*shortfalls(scored.answer, question.loaded))
        return Ranking(_segments(scored.answer), history_items=len(person.history))

    async def _score(self, work: Work, priority: Priority, lasts_s: float, trace: Trace, *, stage: str) -> Scored:
        """One piece of work, through gate and queue. Its times are taken out of `stage`. Raises NotScored."""
        permit = self._gate.try_acquire(priority, work.weight)
        if permit is None:
            raise NotScored(Reason.ADMISSION)
        expires_at = self._clock() + lasts_s
        waited_s = lasts_s
        try:
            scored, waited_s = await self._batcher.submit(permit, replace(work, expires_at=expires_at), expires_at)
        finally:
            self._gate.waited(waited_s, self._clock())
        trace.took("queue", waited_s * 1e3, out_of=stage)
        if work.answer is None:
            trace.took("retrieve", scored.retrieve_ms, out_of=stage)
            trace.took("rerank", scored.rerank_ms, out_of=stage)
        return scored


def _unpacked(question: Question, found: Found) -> Answer:
    manifest = question.loaded.manifest
    return unpack(found.payload, manifest.items, manifest.dimension)


def _expired(question: Question, found: Found | None) -> Ranking:
    if found is None:
        return Ranking()
    return Ranking(_segments(_unpacked(question, found), Rung.STALE), CacheOutcome.STALE, found.age_s)


def _segments(answer: Answer, rung: Rung | None = None) -> tuple[Segment, ...]:
    """The ranking and the reserve, on the answer's own rung where no other is given."""
    rung = rung or answer.rung
    found = answer.shared.candidates
    ranked, reserve = answer.order()
    parts = ((ranked, answer.rank_scores), (reserve, found.scores[reserve]))
    return tuple(Segment(rung, found.rows[at], scores, found.sources[at]) for at, scores in parts if len(at))


def _popular(rung: Rung, rows: Rows, scores: Floats) -> Segment:
    return Segment(rung, rows, scores, np.full(len(rows), POPULARITY, np.uint8))


def _reason_of(failure: ComputeFailed) -> Reason:
    if isinstance(failure.error, NotScored):
        return failure.error.reason
    log.error("scoring failed", error=repr(failure.error))
    return Reason.SCORING_FAILED
