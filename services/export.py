"""`feedline events export`: the recorded events of the state server, as Parquet for the next night."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from cache.redis_link import open_client
from services.errors import StartError, StateUnavailable
from services.feed.event_export import export
from services.feed.state_keys import StateKeys
from services.settings import State
from services.state import any_state_server


async def export_events(settings: State, out: Path, url: str) -> dict[str, Any]:
    """Exports from `url`, else from `state.url`, else from the embedded server of `state.folder`, running or not.

    Raises StartError naming what could not be reached or written; then the events are still on the server.
    """
    async with AsyncExitStack() as stack:
        client = open_client(url or await any_state_server(settings, stack), max_connections=4)
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
