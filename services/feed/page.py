"""The line of a request: context, question, ranking (or the ladder), slate, page."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from fallback.ladder import Reason, Rung
from services.deadline import Clock, Deadline
from services.domain import CacheOutcome, FeedItem, FeedPage, FeedRequest, Provenance, ShopEvent
from services.errors import StateUnavailable
from services.feed import page_token
from services.feed.live import Live
from services.feed.loaded import Loaded
from services.feed.page_token import PageToken
from services.feed.question import Question, ask
from services.feed.ranking import Ranking, Rankings
from services.feed.sessions import SessionStore
from services.feed.slate import Slate, build_slate
from services.feed.trace import Trace

log = structlog.get_logger()
_WITH_RANKER = frozenset({Rung.RANKED, Rung.BLENDED, Rung.STALE})


@dataclass(frozen=True, slots=True)
class PagePolicy:
    """Times in seconds. Features and scoring together have `budget_s`, or what the caller still waits if less;
    `reserve_s` of it is kept for the fallback."""

    budget_s: float
    features_s: float
    reserve_s: float
    token_key: bytes
    max_depth: int


class FeedLine:
    """Answers feed requests from the live snapshot."""

    def __init__(
        self, policy: PagePolicy, live: Live, sessions: SessionStore, rankings: Rankings, clock: Clock = time.monotonic
    ) -> None:
        self._policy = policy
        self._live = live
        self._sessions = sessions
        self._rankings = rankings
        self._clock = clock

    async def page(self, request: FeedRequest, caller_s: float | None) -> FeedPage:
        """One page. `caller_s`: seconds that the caller still waits; None: the page budget alone holds.

        Raises InvalidArgument for a page token that is not ours, and nothing else: what is broken lowers the rung.
        """
        trace = Trace(self._clock)
        token = page_token.decode(request.page_token, self._policy.token_key) if request.page_token else None
        loaded = self._live.current()
        if loaded is None:
            return _empty_page(trace)
        try:
            return await self._line(request, loaded, token, self._deadline(caller_s), trace)
        except (Exception, asyncio.CancelledError):
            if _cancelled_by_caller():
                raise
            log.exception("a page failed")
            trace.note(Reason.INTERNAL_ERROR)
            return self._finish(request, ask(loaded, request, (), trace), Ranking(), token, trace)

    async def _line(
        self, request: FeedRequest, loaded: Loaded, token: PageToken | None, deadline: Deadline, trace: Trace
    ) -> FeedPage:
        trace.note(*loaded.reasons)
        with trace.stage("session"):
            events = await self._events(request, deadline, trace)
        with trace.stage("key"):
            question = ask(loaded, request, events, trace)
        ranking = await self._rankings.rank(question, request.priority, deadline, trace)
        return self._finish(request, question, ranking, token, trace)

    def _deadline(self, caller_s: float | None) -> Deadline:
        policy = self._policy
        return Deadline.of(caller_s=caller_s, budget_s=policy.budget_s, reserve_s=policy.reserve_s, clock=self._clock)

    async def _events(self, request: FeedRequest, deadline: Deadline, trace: Trace) -> list[ShopEvent]:
        """Recorded and given events, oldest first; the given ones alone when the session cannot be read in time."""
        recorded: Sequence[ShopEvent] = ()
        if request.session_id:
            try:
                async with asyncio.timeout(min(self._policy.features_s, deadline.left())):
                    recorded = await self._sessions.read(request.tenant, request.session_id)
            except (StateUnavailable, TimeoutError):
                trace.note(Reason.SESSION_UNAVAILABLE)
        known = {event.event_id for event in recorded}
        given = [event for event in request.recent_events if not event.event_id or event.event_id not in known]
        return sorted([*recorded, *given], key=lambda event: event.occurred_at_ms)

    def _finish(
        self, request: FeedRequest, question: Question, ranking: Ranking, token: PageToken | None, trace: Trace
    ) -> FeedPage:
        """The slate, the next token and the provenance."""
        loaded = question.loaded
        if token is not None and token.snapshot_id != loaded.id:
            trace.note(Reason.PAGE_TOKEN_RESTARTED)
            token = None
        shown = [row for row in token.rows if row < loaded.items.count] if token else []
        with trace.stage("slate"):
            slate = build_slate(
                ranking.with_backfill(question),
                eligible=loaded.eligible(question.category, question.region),
                hidden=[*shown, *loaded.items.rows(request.exclude_item_ids)],
                size=max(0, min(request.page_size, self._policy.max_depth - len(shown))),
            )
            items = _items(loaded, slate, first_rank=len(shown) + 1)
        rung = slate.rung or (Rung.POPULAR_CATEGORY if question.category else Rung.POPULAR)
        next_page_token = self._next_token(question, rung, shown, slate)
        provenance = Provenance(
            rung=rung,
            reasons=trace.reasons,
            snapshot_id=loaded.id,
            ranker_id=loaded.ranker_id if rung in _WITH_RANKER else "",
            cache=ranking.cache,
            cache_age_s=ranking.age_s,
            stages=trace.stages(),
            response_id=_response_id(),
            context_events=len(question.context),
        )
        return FeedPage(items, next_page_token, provenance)

    def _next_token(self, question: Question, rung: Rung, shown: list[int], slate: Slate) -> str:
        rows = (*shown, *slate.rows.tolist())
        if not slate.more or len(rows) >= self._policy.max_depth:
            return ""
        return page_token.encode(PageToken(question.key[-8:], question.loaded.id, rung, rows), self._policy.token_key)


def _items(loaded: Loaded, slate: Slate, first_rank: int) -> tuple[FeedItem, ...]:
    return tuple(
        FeedItem(loaded.items.item_id(row), score, rank)
        for rank, (row, score) in enumerate(zip(slate.rows.tolist(), slate.scores.tolist(), strict=True), first_rank)
    )


def _empty_page(trace: Trace) -> FeedPage:
    """Without a snapshot there is nothing to show: an empty page that says so."""
    trace.note(Reason.NO_SNAPSHOT)
    provenance = Provenance(
        rung=Rung.POPULAR,
        reasons=trace.reasons,
        snapshot_id="",
        ranker_id="",
        cache=CacheOutcome.UNUSED,
        cache_age_s=0.0,
        stages=trace.stages(),
        response_id=_response_id(),
        context_events=0,
    )
    return FeedPage((), "", provenance)


def _response_id() -> str:
    return secrets.token_hex(8)


def _cancelled_by_caller() -> bool:
    """Whether the request's own task is being cancelled, and not something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
