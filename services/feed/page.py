"""The line of a request: context, question, ranking (or the ladder), slate, page."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import structlog
from cachetools import LRUCache

from fallback.ladder import Reason, Rung
from indexer.contract.blend import source_names
from services.deadline import Clock, Deadline
from services.domain import (
    CacheOutcome,
    EventType,
    FeedItem,
    FeedPage,
    FeedRequest,
    Known,
    Provenance,
    ShopEvent,
    Source,
)
from services.errors import StateUnavailable
from services.feed import page_token
from services.feed.live import Live
from services.feed.loaded import Loaded
from services.feed.page_token import PageToken
from services.feed.question import Question, ask
from services.feed.ranking import Ranking, Rankings
from services.feed.sessions import SessionStore
from services.feed.slate import Slate, build_slate
from services.feed.slate_rules import Diversity, Rules
from services.feed.trace import Trace
from services.feed.work import Person, history_of

log = structlog.get_logger()
_DAY_S = 86_400
_ids = random.Random()  # noqa: S311 - names of answers, not secrets; the system's own source costs 20 us each
_Page = tuple[Slate, tuple[FeedItem, ...]]
_POPULAR_PAGES = 256
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
    rules: Rules
    hide_bought: bool


class FeedLine:
    """Answers feed requests from the live snapshot."""

    def __init__(
        self,
        policy: PagePolicy,
        live: Live,
        sessions: SessionStore,
        rankings: Rankings,
        *,
        now: Callable[[], float] = time.time,
        clock: Clock = time.monotonic,
    ) -> None:
        """`now`: Unix time in seconds, by which histories are so and so many days old."""
        self._policy = policy
        self._live = live
        self._sessions = sessions
        self._rankings = rankings
        self._now = now
        self._clock = clock
        self._popular_pages: LRUCache[tuple[str, str, str, int], _Page] = LRUCache(_POPULAR_PAGES)

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
        if not self._rankings.open_to(request.priority):
            return await self._at_a_closed_door(request, loaded, token, trace)
        with trace.stage("session"):
            known = await self._known(request, deadline, trace)
        with trace.stage("key"):
            events = _all_events(request, known)
            question = ask(loaded, request, events, trace)
            person = self._person(request, loaded, known, trace)
        ranking = await self._rankings.rank(question, person, request.priority, deadline, trace)
        bought = _bought(loaded, person, events) if self._policy.hide_bought else ()
        return self._finish(request, question, ranking, token, trace, bought)

    async def _at_a_closed_door(
        self, request: FeedRequest, loaded: Loaded, token: PageToken | None, trace: Trace
    ) -> FeedPage:
        """Nothing is read of the session and the user: the request's own events may ask what is kept, or the ladder
        answers."""
        events = _all_events(request, Known())
        question = ask(loaded, request, events, trace)
        ranking = await self._rankings.kept(question, trace)
        if (len(question.context) and not ranking.segments) or request.session_id or request.user_id:
            trace.note(Reason.ADMISSION)
        elif not len(question.context):
            trace.note(Reason.NO_CONTEXT)
        bought = _bought(loaded, Person(), events) if self._policy.hide_bought else ()
        return self._finish(request, question, ranking, token, trace, bought)

    def _deadline(self, caller_s: float | None) -> Deadline:
        policy = self._policy
        return Deadline.of(caller_s=caller_s, budget_s=policy.budget_s, reserve_s=policy.reserve_s, clock=self._clock)

    async def _known(self, request: FeedRequest, deadline: Deadline, trace: Trace) -> Known:
        """What is recorded of the session and of the user; nothing when it cannot be read in time."""
        if not request.session_id and not request.user_id:
            return Known()
        try:
            async with asyncio.timeout(min(self._policy.features_s, deadline.left())):
                known = await self._sessions.read(request.tenant, request.session_id, request.user_id)
        except StateUnavailable as error:
            known = Known(history_fault=error.reason, session_fault=error.reason)
        except TimeoutError:
            known = Known(history_fault="timeout", session_fault="timeout")
        if request.session_id and known.session_fault:
            trace.note(Reason.SESSION_UNAVAILABLE)
        if request.user_id and known.history_fault:
            trace.note(Reason.HISTORY_UNAVAILABLE)
        return known

    def _person(self, request: FeedRequest, loaded: Loaded, known: Known, trace: Trace) -> Person:
        """The history as far as the snapshot knows its items."""
        history = history_of(loaded, known.history)
        if request.user_id and not known.history_fault and not len(history):
            trace.note(Reason.NO_HISTORY)
        return Person(history, self._now() / _DAY_S)

    def _finish(
        self,
        request: FeedRequest,
        question: Question,
        ranking: Ranking,
        token: PageToken | None,
        trace: Trace,
        bought: Sequence[int] = (),
    ) -> FeedPage:
        """The slate, the next token and the provenance. `bought`: rows that are not to be shown again."""
        loaded = question.loaded
        if token is not None and token.snapshot_id != loaded.id:
            trace.note(Reason.PAGE_TOKEN_RESTARTED)
            token = None
        shown = [row for row in token.rows if row < loaded.items.count] if token else []
        hidden = [*bought, *loaded.items.rows(request.exclude_item_ids)]
        size = max(0, min(request.page_size, self._policy.max_depth - len(shown)))
        with trace.stage("slate"):
            if ranking.segments or hidden or shown:
                slate, items = self._slate(question, ranking, hidden, size, shown)
            else:
                slate, items = self._popular(question, size)
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
            history_items=ranking.history_items,
        )
        return FeedPage(items, next_page_token, provenance)

    def _slate(
        self, question: Question, ranking: Ranking, hidden: Sequence[int], size: int, shown: Sequence[int]
    ) -> _Page:
        loaded = question.loaded
        slate = build_slate(
            ranking.with_backfill(question),
            eligible=loaded.allowed(question.category, question.region),
            hidden=hidden,
            size=size,
            shown=shown,
            diversity=_diversity(self._policy.rules, question),
        )
        return slate, _items(loaded, slate, first_rank=len(shown) + 1)

    def _popular(self, question: Question, size: int) -> _Page:
        """The first page of what is popular is the same for everybody: overload must not pay for it each time."""
        key = (question.loaded.id, question.category, question.region, size)
        page = self._popular_pages.get(key)
        if page is None:
            page = self._popular_pages[key] = self._slate(question, Ranking(), (), size, ())
        return page

    def _next_token(self, question: Question, rung: Rung, shown: list[int], slate: Slate) -> str:
        rows = (*shown, *slate.rows.tolist())
        if not slate.more or len(rows) >= self._policy.max_depth:
            return ""
        return page_token.encode(PageToken(question.key[-8:], question.loaded.id, rung, rows), self._policy.token_key)


def _all_events(request: FeedRequest, known: Known) -> list[ShopEvent]:
    """Recorded and given events, oldest first, each once."""
    ids = {event.event_id for event in known.events}
    given = [event for event in request.recent_events if not event.event_id or event.event_id not in ids]
    return sorted([*known.events, *given], key=lambda event: event.occurred_at_ms)


def _bought(loaded: Loaded, person: Person, events: Sequence[ShopEvent]) -> list[int]:
    """Rows of what the history knows and of what was bought in this session."""
    ids = [event.item_id for event in events if event.type is EventType.PURCHASE]
    return [*person.history.rows.tolist(), *loaded.items.rows(ids)]


def _diversity(rules: Rules, question: Question) -> Diversity:
    """The rules over the snapshot's items; a page of one category has no cap of categories."""
    loaded = question.loaded
    vectors = loaded.shelf.vectors if loaded.shelf else None
    return Diversity.of(rules.within_category() if question.category else rules, loaded.items, vectors)


def _items(loaded: Loaded, slate: Slate, first_rank: int) -> tuple[FeedItem, ...]:
    shown = zip(slate.rows.tolist(), slate.scores.tolist(), slate.sources.tolist(), strict=True)
    return tuple(
        FeedItem(loaded.items.item_id(row), score, rank, _sources(bits))
        for rank, (row, score, bits) in enumerate(shown, first_rank)
    )


@cache
def _sources(bits: int) -> tuple[Source, ...]:
    return tuple(Source[name.upper()] for name in source_names(bits))


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
        history_items=0,
    )
    return FeedPage((), "", provenance)


def _response_id() -> str:
    return f"{_ids.getrandbits(64):016x}"


def _cancelled_by_caller() -> bool:
    """Whether the request's own task is being cancelled, and not something that it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
