"""What a session did last, read from Redis in one round trip."""

from __future__ import annotations

import json
from typing import cast

from cache.redis_link import RedisLink
from cache.tier import TierUnavailable
from services.domain import EventType, ShopEvent
from services.errors import StateUnavailable
from services.feed.state_keys import StateKeys

_FORMAT = 1


class SessionStore:
    """The last `max_events` events of each session, kept for `lifetime_s` seconds after the last one.

    The order is that of arrival. `EventStream` writes them.
    """

    def __init__(
        self, link: RedisLink, keys: StateKeys, *, max_events: int = 100, lifetime_s: float = 7 * 86400
    ) -> None:
        if max_events < 1 or lifetime_s < 0.001:
            raise ValueError(f"max_events, lifetime_s: expected 1 and 0.001 or more, got {max_events} and {lifetime_s}")
        self._link = link
        self._keys = keys
        self.max_events = max_events
        self.lifetime_s = lifetime_s

    async def read(self, tenant: str, session_id: str) -> tuple[ShopEvent, ...]:
        """Return the session's events, newest last; empty if it is not known.

        Raises `StateUnavailable`, with the reason in one word: the caller goes on with what the request brought.
        """
        key = self._keys.session(tenant, session_id)
        try:
            packed = await self._link.call(lambda client: client.lrange(key, -self.max_events, -1))
        except TierUnavailable as error:
            raise StateUnavailable(str(error.reason)) from error
        try:
            return tuple(unpack_event(item) for item in cast("list[bytes]", packed))
        except (ValueError, TypeError) as error:
            raise StateUnavailable("session_corrupt") from error


def pack_event(event: ShopEvent) -> str:
    """Return the event as a JSON array that begins with the number of its format."""
    fields = [_FORMAT, event.event_id, event.item_id, int(event.type), event.occurred_at_ms, event.response_id]
    return json.dumps(fields, separators=(",", ":"))


def unpack_event(packed: bytes) -> ShopEvent:
    """Return what `pack_event` packed. Raises `ValueError` or `TypeError` for anything else."""
    number, event_id, item_id, event_type, occurred_at_ms, response_id = json.loads(packed)
    if number != _FORMAT:
        raise ValueError(f"session event: expected format {_FORMAT}, got {number}")
    return ShopEvent(event_id, item_id, EventType(event_type), occurred_at_ms, response_id)
