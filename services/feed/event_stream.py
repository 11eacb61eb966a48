"""Stores what shoppers did: once, in the session, in the durable stream and in the user's history, or not at all."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import cast

import structlog
from redis.asyncio import Redis
from redis.exceptions import InvalidResponse, ResponseError

from cache.redis_link import RedisLink, expect
from cache.tier import TierUnavailable
from indexer.contract.purchases import session_tag
from services.domain import EventType, RecordedEvents, ShopEvent
from services.errors import StateUnavailable
from services.feed import history
from services.feed.script import Script
from services.feed.sessions import SessionStore, pack_event
from services.feed.state_keys import SHARDS, StateKeys

log = structlog.get_logger()

STREAM_FORMAT = 1
STREAM_FIELD = b"e"

# KEYS: stream, session list, one mark per event.
# ARGV: stream limit, mark lifetime ms, session limit, session lifetime ms, then per event: stream entry, session entry
# ("" keeps it out of the session). Returns how many were new; -1: the stream is full; -2: a key is of another type.
# Redis does not undo what a failed script wrote, so everything that can fail is looked at before the first write
# (memory, too: Redis refuses the first write of a script when memory is short, and none after it).
_STORE = Script("""
local function is(key, kind)
  local found = redis.call('TYPE', key)['ok']
  return found == 'none' or found == kind
end
if not is(KEYS[1], 'stream') or not is(KEYS[2], 'list') then return -2 end
local new = {}
for i = 3, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then new[#new + 1] = i end
end
if #new == 0 then return 0 end
if redis.call('XLEN', KEYS[1]) + #new > tonumber(ARGV[1]) then return -1 end
local pushed = false
for _, i in ipairs(new) do
  local entry = ARGV[2 * i - 1]
  local seen = ARGV[2 * i]
  redis.call('SET', KEYS[i], '1', 'PX', ARGV[2])
  redis.call('XADD', KEYS[1], '*', 'e', entry)
  if seen ~= '' then
    redis.call('RPUSH', KEYS[2], seen)
    pushed = true
  end
end
if pushed then
  redis.call('LTRIM', KEYS[2], -tonumber(ARGV[3]), -1)
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
return #new
""")


_REFUSALS = {-1: "event_stream_full", -2: "wrong_key_type"}


@dataclass(frozen=True, slots=True)
class Recorded:
    """How many events a call stored, and how many had been stored before (or stood twice in the call)."""

    stored: int
    repeated: int


class EventStream:
    """Writes events to their session and to one of 16 streams, from which `feedline events export` takes them, and
    purchases to the history of their user.

    Session and stream are written first, by one script, then the history by another: its keys may be on another node.
    Each knows what it has counted, so that after any failure the same call brings the rest to its place, once.

    Durability is that of the server: with `appendonly yes` and `appendfsync everysec` a killed server loses nothing
    that was acknowledged and a lost machine at most the last second; without append-only everything since the last
    save. `check_state_server` warns. Nothing is dropped to make room: a full stream or a full server refuses.
    """

    def __init__(
        self,
        link: RedisLink,
        keys: StateKeys,
        sessions: SessionStore,
        *,
        event_lifetime_s: float = 7 * 86400,
        max_stream_length: int = 5_000_000,
        timeout_s: float = 0.25,
    ) -> None:
        """An event_id is recognised for `event_lifetime_s`. `max_stream_length` counts over all streams."""
        if event_lifetime_s < 0.001 or max_stream_length < SHARDS:
            raise ValueError(
                f"event_lifetime_s, max_stream_length: expected 0.001 and {SHARDS} or more, "
                f"got {event_lifetime_s} and {max_stream_length}"
            )
        self._link = link
        self._keys = keys
        self._timeout_s = timeout_s
        marks_ms, session_ms = round(1000 * event_lifetime_s), round(1000 * sessions.lifetime_s)
        self._limits = (max_stream_length // SHARDS, marks_ms, sessions.max_events, session_ms)
        self._history_limits = (marks_ms, sessions.history_items, round(1000 * sessions.history_lifetime_s))

    async def record(self, batch: RecordedEvents) -> Recorded:
        """Store the events that were not stored before: in one call of one script, all of them or none.

        Impressions go to the stream only. Purchases of a known user are then counted in the history by one call of
        another. Raises `StateUnavailable`, and then the events may be sent again: they, or all but the history, may
        have been stored all the same, and their event_id tells.
        """
        events: dict[str, ShopEvent] = {}
        for event in batch.events:
            events.setdefault(event.event_id, event)
        try:
            stored = await self._link.call(
                lambda client: self._store(client, batch, tuple(events.values())), timeout_s=self._timeout_s
            )
        except TierUnavailable as error:
            raise StateUnavailable(str(error.reason)) from error
        if stored in _REFUSALS:
            raise StateUnavailable(_REFUSALS[stored])
        return Recorded(stored, len(batch.events) - stored)

    async def _store(self, client: Redis, batch: RecordedEvents, events: tuple[ShopEvent, ...]) -> int:
        tenant, session_id = batch.tenant, batch.session_id
        keys: list[str | bytes] = [self._keys.stream_of(tenant, session_id), self._keys.session(tenant, session_id)]
        arguments: list[str | int] = [*self._limits]
        for event in events:
            keys.append(self._keys.event(tenant, session_id, event.event_id))
            arguments += (pack_entry(batch, event), "" if event.type is EventType.IMPRESSION else pack_event(event))
        stored = expect(await _STORE(client, keys, arguments), int)
        if stored not in _REFUSALS and not 0 <= stored <= len(events):
            raise InvalidResponse(f"{stored} of {len(events)} events stored: an answer to another command")
        bought = [event for event in events if event.type is EventType.PURCHASE]
        if stored in _REFUSALS or not bought or not batch.user_id or not self._history_limits[1]:
            return stored
        counted = await self._count(client, batch, bought)
        return counted if counted in _REFUSALS else stored

    async def _count(self, client: Redis, batch: RecordedEvents, bought: list[ShopEvent]) -> int:
        tenant, session_id, user_id = batch.tenant, batch.session_id, batch.user_id
        keys = [self._keys.history(tenant, user_id)]
        arguments: list[str | bytes | int] = [*self._history_limits, session_tag(session_id)]
        for event in bought:
            keys.append(self._keys.bought(tenant, user_id, session_id, event.event_id))
            arguments += (event.item_id.encode("utf-8", "surrogatepass"), history.clamped(event.occurred_at_ms))
        counted, lost = cast("list[int]", await history.RECORD(client, keys, arguments))
        if lost:
            log.warning("history replaced", why="what stood there was no history of this version", key=keys[0])
        return counted


def pack_entry(batch: RecordedEvents, event: ShopEvent) -> str:
    """Return a stream entry: a JSON array that begins with the number of its format."""
    who = (batch.tenant, batch.session_id, batch.user_id, batch.region)
    what = (event.item_id, int(event.type), event.occurred_at_ms, event.response_id)
    return json.dumps([STREAM_FORMAT, event.event_id, *who, *what], separators=(",", ":"))


async def check_state_server(client: Redis) -> list[str]:
    """Return what about the server endangers recorded events, in sentences; empty if nothing does.

    Raises redis-py's errors if the server cannot be asked.
    """
    try:
        info = await cast("Awaitable[dict[str, object]]", client.info("everything"))
    except ResponseError as error:
        return [f"state server: durability could not be checked ({error}); INFO needs to be allowed"]
    warnings = []
    if info.get("aof_enabled") == 0:
        warnings.append("state server: appendonly is off: recorded events are lost when it stops; set appendonly yes")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if policy.startswith("allkeys") and info.get("maxmemory") != 0:
        warnings.append(
            f"state server: maxmemory-policy is {policy}: recorded events may be evicted; "
            "set noeviction, or volatile-lfu where the cache shares the server"
        )
    return warnings
