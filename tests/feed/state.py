"""Sessions and the event stream on a real server, and batches to put into them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cache.redis_link import RedisLink
from services.domain import EventType, RecordedEvents, ShopEvent
from services.feed.event_stream import EventStream
from services.feed.sessions import SessionStore
from services.feed.state_keys import StateKeys
from tests.servers import link_to

NOW_MS = 1_800_000_000_000


@dataclass(frozen=True)
class State:
    link: RedisLink
    keys: StateKeys
    sessions: SessionStore
    stream: EventStream


@asynccontextmanager
async def state_at(
    url: str,
    *,
    max_events: int = 100,
    lifetime_s: float = 3600,
    max_stream_length: int = 16_000,
    prefix: str = "feedline:",
    history_items: int = 256,
) -> AsyncIterator[State]:
    async with link_to(url) as link:
        keys = StateKeys(prefix)
        sessions = SessionStore(
            link,
            keys,
            max_events=max_events,
            lifetime_s=lifetime_s,
            history_items=history_items,
            history_lifetime_s=lifetime_s,
        )
        stream = EventStream(
            link,
            keys,
            sessions,
            event_lifetime_s=lifetime_s,
            max_stream_length=max_stream_length,
            timeout_s=5,
        )
        yield State(link, keys, sessions, stream)


def event(
    number: int, kind: EventType = EventType.VIEW, *, event_id: str | None = None, response_id: str = ""
) -> ShopEvent:
    identity = f"e{number}" if event_id is None else event_id
    return ShopEvent(identity, f"item-{number:03d}", kind, NOW_MS + number, response_id)


def batch(*events: ShopEvent, session: str = "s", tenant: str = "shop", user: str = "u") -> RecordedEvents:
    return RecordedEvents(session_id=session, user_id=user, tenant=tenant, region="eu", events=events)


def purchase(number: int, item: str, at: int) -> ShopEvent:
    """`at`: milliseconds after NOW_MS."""
    return ShopEvent(f"p{number}", item, EventType.PURCHASE, NOW_MS + at)
