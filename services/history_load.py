"""`feedline events load`: what users bought before, written into the histories of the state server."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from typing import cast

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.exceptions import RedisError

from cache.redis_link import open_client
from indexer.contract.purchases import UserPurchases
from services.errors import StartError
from services.feed.history import MERGE, pack
from services.feed.state_keys import StateKeys
from services.settings import State
from services.state import any_state_server

BATCH = 1000
"""Users a round trip; what a kill makes the next run write again at most."""
SCRIPT_BYTES = 32 * 1024
"""Of histories a script call, or a single one: the server answers nobody else meanwhile."""
_TIMEOUT_S = 10.0
_MARK_S = 7 * 86_400
"""How long a load that was stopped may go on where it stopped."""
_Entry = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class LoadedHistories:
    """Users written; `resumed_after` were written by an earlier run. Of those written, `known` had a history before,
    which was merged, or replaced where it was none (`replaced`); the keys of `foreign` are of another type and stay."""

    users: int
    resumed_after: int
    known: int
    replaced: int
    foreign: int
    seconds: float


async def load_histories(
    settings: State,
    url: str,
    users: Callable[[int], Iterator[UserPurchases]],
    what: str,
    advance: Callable[[int], None],
    clock: Callable[[], float] = time.monotonic,
) -> LoadedHistories:
    """Writes to `url`, else `state.url`, else the embedded server of `state.folder`, running or not.

    `users(n)` gives all users but the first n, always in the same order as long as `what` is the same: a load that was
    stopped goes on where it stopped. A history that stands there is merged with, so that purchases recorded
    meanwhile stay and a second load changes nothing. Merging never counts a purchase twice and may count too few:
    of an item that both know from sessions before the latest one, the larger number stands, so that sessions
    which only one of the two knows are lost to the other's. Loading what was exported from the service as well leaves
    nothing out.

    Raises StartError naming what could not be written.
    """
    begun = clock()
    async with AsyncExitStack() as stack:
        client = open_client(url or await any_state_server(settings, stack), max_connections=2)
        stack.push_async_callback(client.aclose)
        load = _Load(client, StateKeys(f"{settings.prefix}:"), settings.history_items, settings.history_s, what)
        try:
            return await load.run(users, advance, lambda: clock() - begun)
        except (RedisError, OSError) as error:
            detail = f"{type(error).__name__}: {error}".rstrip(": ")
            raise StartError(
                f"the state server cannot be written: {detail}; the same command goes on where it stopped"
            ) from error


class _Load:
    def __init__(self, client: Redis, keys: StateKeys, items: int, lifetime_s: float, what: str) -> None:
        self._client = client
        self._keys = keys
        self._limits = (items, round(1000 * lifetime_s))
        self._mark = keys.load(what)
        self._found = [0, 0, 0]

    async def run(
        self,
        users: Callable[[int], Iterator[UserPurchases]],
        advance: Callable[[int], None],
        elapsed: Callable[[], float],
    ) -> LoadedHistories:
        """All batches, one after the other; the mark is moved when a batch was acknowledged."""
        await self._within(self._client.script_load(MERGE.text))
        first = done = int(cast("bytes | None", await self._within(self._client.get(self._mark))) or 0)
        advance(done)
        left = users(done)
        while batch := [self._entry(user) for user in islice(left, BATCH)]:
            await self._write(batch)
            done += len(batch)
            await self._within(self._client.set(self._mark, done, ex=_MARK_S))
            advance(len(batch))
        await self._within(self._client.delete(self._mark))
        known, replaced, foreign = self._found
        return LoadedHistories(done - first, first, known, replaced, foreign, round(elapsed(), 3))

    def _entry(self, user: UserPurchases) -> _Entry:
        return self._keys.history(user.tenant, user.user_id), pack(user)

    async def _write(self, batch: Sequence[_Entry]) -> None:
        """One round trip; a script call has keys of one slot."""
        slots: defaultdict[str, list[_Entry]] = defaultdict(list)
        pipe = self._client.pipeline(transaction=False)
        for key, value in batch:
            slot = slots[key[: key.index("}")]]
            slot.append((key, value))
            if sum(len(text) for _, text in slot) >= SCRIPT_BYTES:
                self._merge(pipe, slot)
                slot.clear()
        for slot in slots.values():
            if slot:
                self._merge(pipe, slot)
        for counts in cast("list[list[int]]", await self._within(pipe.execute())):
            self._found = [sum(pair) for pair in zip(self._found, counts, strict=True)]

    def _merge(self, pipe: Pipeline, entries: Sequence[_Entry]) -> None:
        keys, values = zip(*entries, strict=True)
        pipe.evalsha(MERGE.digest, len(keys), *keys, *self._limits, *values)

    async def _within(self, command: object) -> object:
        async with asyncio.timeout(_TIMEOUT_S):
            return await cast("Awaitable[object]", command)
