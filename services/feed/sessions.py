"""What a session did last and what its user bought before, read from Redis in one round trip."""

from __future__ import annotations

import json
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from cache.redis_link import RedisLink, reason_of
from cache.tier import TierUnavailable
from indexer.contract.purchases import session_tag
from services.domain import EventType, Known, PastPurchases, ShopEvent
from services.errors import StateUnavailable
from services.feed import history
from services.feed.state_keys import StateKeys

_FORMAT = 1


class SessionStore:
    """The last `max_events` events of each session, kept for `lifetime_s` seconds after the last one, in order of
    arrival; and the `history_items` items (0: no histories) that each user bought last, kept for
    `history_lifetime_s` seconds after they were last written.

    `EventStream` writes both.
    """

    def __init__(
        self,
        link: RedisLink,
        keys: StateKeys,
        *,
        max_events: int = 100,
        lifetime_s: float = 7 * 86400,
        history_items: int = 256,
        history_lifetime_s: float = 2 * 365 * 86400,
    ) -> None:
        if max_events < 1 or lifetime_s < 0.001:
            raise ValueError(f"max_events, lifetime_s: expected 1 and 0.001 or more, got {max_events} and {lifetime_s}")
        if history_items < 0 or history_lifetime_s < 0.001:
            raise ValueError(
                f"history_items, history_lifetime_s: expected 0 and 0.001 or more, "
                f"got {history_items} and {history_lifetime_s}"
            )
        self._link = link
        self._keys = keys
        self.max_events = max_events
        self.lifetime_s = lifetime_s
        self.history_items = history_items
        self.history_lifetime_s = history_lifetime_s

    async def read(self, tenant: str, session_id: str, user_id: str) -> Known:
        """Return the session's events, oldest first, and what the user bought before this session.

        An id may be empty: then nothing is read for it. What is not known is empty. A session that cannot be read
        leaves the history and the other way round: `session_fault` and `history_fault` say why, in one word.

        Raises `StateUnavailable`, with the reason in one word, when nothing that was asked for could be read: the
        caller goes on with what the request brought.
        """
        keep = self.history_items if user_id else 0
        if not session_id and not keep:
            return Known()

        async def both(client: Redis) -> list[object]:
            pipe = client.pipeline(transaction=False)
            if session_id:
                pipe.lrange(cast("str", self._keys.session(tenant, session_id)), -self.max_events, -1)
            if keep:
                pipe.get(self._keys.history(tenant, user_id))
            answers = await pipe.execute(raise_on_error=False)
            refused = [answer for answer in answers if isinstance(answer, ResponseError)]
            if len(refused) == len(answers):
                raise refused[0]
            return answers

        try:
            answers = await self._link.call(both)
        except TierUnavailable as error:
            raise StateUnavailable(str(error.reason)) from error
        events, session_fault = _events(answers[0]) if session_id else ((), "")
        bought, history_fault = _bought(answers[-1], session_id, keep) if keep else (PastPurchases(), "")
        if (session_fault or not session_id) and (history_fault or not keep):
            raise StateUnavailable(session_fault or history_fault)
        return Known(events, bought, history_fault, session_fault)


def _events(answer: object) -> tuple[tuple[ShopEvent, ...], str]:
    """The session and what is wrong with it."""
    if isinstance(answer, ResponseError):
        return (), str(reason_of(answer))
    try:
        return tuple(unpack_event(item) for item in cast("list[bytes]", answer)), ""
    except (ValueError, TypeError):
        return (), "session_corrupt"


def _bought(answer: object, session_id: str, most: int) -> tuple[PastPurchases, str]:
    """The history and what is wrong with it."""
    if isinstance(answer, ResponseError):
        return PastPurchases(), str(reason_of(answer))
    if answer is None:
        return PastPurchases(), ""
    try:
        return history.unpack(cast("bytes", answer), session_tag(session_id) if session_id else "", most), ""
    except (ValueError, TypeError, RecursionError):
        return PastPurchases(), "history_corrupt"


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
