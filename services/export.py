"""`feedline events export`: the recorded events of the state server, as Parquet for the next night."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from cache.embedded import EmbeddedValkey
from cache.redis_link import open_client
from services.errors import StartError, StateUnavailable
from services.feed.event_export import export
from services.feed.state_keys import StateKeys
from services.settings import State
from services.state import state_server

_RUNNING_WITHIN_S = 5.0


async def export_events(settings: State, out: Path, url: str) -> dict[str, Any]:
    """Exports from `url`, else from `state.url`, else from the embedded server of `state.folder`, running or not.

    Raises StartError naming what could not be reached or written; then the events are still on the server.
    """
    async with AsyncExitStack() as stack:
        source = url or settings.url or await _embedded(settings, stack)
        client = open_client(source, max_connections=4)
        stack.push_async_callback(client.aclose)
        try:
            done = await export(client, out, StateKeys(f"{settings.prefix}:"))
        except StateUnavailable as error:
            raise StartError(f"the state server cannot be read: {error.reason}") from error
        except OSError as error:
            raise StartError(f"{out}: {error}") from error
    return {
        "events": done.events,
        "rejected": done.rejected,
        "file": str(done.file) if done.file else None,
        "rejects": str(done.rejects) if done.rejects else None,
    }


async def _embedded(settings: State, stack: AsyncExitStack) -> str:
    """The URL of the embedded server: the one that the service runs now, else one started for the export."""
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
