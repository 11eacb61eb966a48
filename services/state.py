"""Where sessions, histories and events live: the server of `state.url`, or the embedded one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from redis.exceptions import RedisError

from cache.embedded import EmbeddedServerError, EmbeddedValkey, ServerEvent
from cache.redis_link import open_client
from services.errors import StartError
from services.settings import State

SHARED_POLICY = "volatile-lfu"
"""Of a server that holds cached answers and events: the least used keys with a lifetime go first; streams have none."""
_RUNNING_WITHIN_S = 5.0


@asynccontextmanager
async def state_server(settings: State, observe: Callable[[ServerEvent], None] | None = None) -> AsyncIterator[str]:
    """The URL of the state server; without `state.url` a Valkey server runs in `state.folder` while this is entered.

    Raises StartError, naming the folder, when the embedded server cannot run here.
    """
    if settings.url:
        yield settings.url
        return
    embedded = EmbeddedValkey(
        settings.folder, maxmemory_bytes=settings.max_memory_mb << 20, maxmemory_policy=SHARED_POLICY, observe=observe
    )
    try:
        await embedded.__aenter__()
    except EmbeddedServerError as error:
        raise StartError(str(error)) from error
    try:
        yield embedded.url
    finally:
        await embedded.__aexit__(None, None, None)


async def any_state_server(settings: State, stack: AsyncExitStack) -> str:
    """The URL of the state server; of the embedded one that a service runs now, else of one that `stack` stops again.

    Raises StartError as `state_server`.
    """
    if settings.url:
        return settings.url
    running = EmbeddedValkey(settings.folder).url
    client = open_client(running, max_connections=1)
    try:
        async with asyncio.timeout(_RUNNING_WITHIN_S):
            await client.ping()
    except (RedisError, OSError):
        return await stack.enter_async_context(state_server(settings))
    finally:
        await client.aclose()
    return running
