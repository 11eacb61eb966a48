"""Where sessions and events live: the server of `state.url`, or the embedded one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from cache.embedded import EmbeddedServerError, EmbeddedValkey, ServerEvent
from services.errors import StartError
from services.settings import State

SHARED_POLICY = "volatile-lfu"
"""Of a server that holds cached answers and events: the least used keys with a lifetime go first; streams have none."""


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
