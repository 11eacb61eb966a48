"""The words of the online service: what a request asks and what a page answers. Immutable, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fallback.ladder import Reason, Rung


class EventType(IntEnum):
    """What a shopper did with an item. The numbers are those of `feedline.v1.EventType`."""

    IMPRESSION = 1
    VIEW = 2
    CLICK = 3
    CART = 4
    PURCHASE = 5


class Priority(IntEnum):
    """Who goes first when not all can be served. The numbers are those of `feedline.v1.Priority`."""

    INTERACTIVE = 1
    PREFETCH = 2


class CacheOutcome(IntEnum):
    """What the cache did for a page. The numbers are those of `feedline.v1.CacheOutcome`."""

    OFF = 1
    UNUSED = 2
    LOCAL = 3
    SHARED = 4
    JOINED = 5
    MISS = 6
    STALE = 7


class Source(IntEnum):
    """What brought an item to a page. The numbers are those of `feedline.v1.Source`."""

    ANN = 1
    NEIGHBOURS = 2
    HISTORY = 3
    POPULARITY = 4


@dataclass(frozen=True, slots=True)
class ShopEvent:
    """One thing that a shopper did. `occurred_at_ms` is Unix time in milliseconds, UTC."""

    event_id: str
    item_id: str
    type: EventType
    occurred_at_ms: int
    response_id: str = ""


@dataclass(frozen=True, slots=True)
class PastPurchase:
    """An item that a user bought in `times` earlier sessions, first and last at these moments, Unix milliseconds."""

    item_id: str
    times: int
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class PastPurchases:
    """What a user bought before the session at hand, latest first, and in how many sessions something was bought."""

    items: tuple[PastPurchase, ...] = ()
    sessions: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """What the state server knows of who asks: the session's events, oldest first, and the user's history.

    `history_fault`, `session_fault`: why one of them could not be read, in one word, while the other could; empty when
    it was read, or nobody asked for it.
    """

    events: tuple[ShopEvent, ...] = ()
    history: PastPurchases = PastPurchases()
    history_fault: str = ""
    session_fault: str = ""


@dataclass(frozen=True, slots=True)
class FeedRequest:
    """A validated `GetFeedRequest`: defaults are filled in, limits hold."""

    session_id: str
    user_id: str
    surface: str
    category: str
    region: str
    tenant: str
    page_size: int
    page_token: str
    recent_events: tuple[ShopEvent, ...]
    exclude_item_ids: tuple[str, ...]
    priority: Priority


@dataclass(frozen=True, slots=True)
class RecordedEvents:
    """A validated `RecordEventsRequest`."""

    session_id: str
    user_id: str
    tenant: str
    region: str
    events: tuple[ShopEvent, ...]


@dataclass(frozen=True, slots=True)
class FeedItem:
    """One item of a page. `rank` counts from 1 over all pages; `score` is comparable within the page only."""

    item_id: str
    score: float
    rank: int
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a page comes from. `stages` are (name, milliseconds) in order of entering."""

    rung: Rung
    reasons: tuple[Reason, ...]
    snapshot_id: str
    ranker_id: str
    cache: CacheOutcome
    cache_age_s: float
    stages: tuple[tuple[str, float], ...]
    response_id: str
    context_events: int
    history_items: int

    @property
    def degraded(self) -> bool:
        """Whether the page is less than the request qualified for."""
        return any(reason.degrades for reason in self.reasons)


@dataclass(frozen=True, slots=True)
class FeedPage:
    """One page of a feed, best item first."""

    items: tuple[FeedItem, ...]
    next_page_token: str
    provenance: Provenance
