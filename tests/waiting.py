"""Waiting for what another process or thread does."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable


async def until(look: Callable[[], object], *, is_: object, within_s: float = 15.0) -> None:
    """Returns when `look` (a function, or one that gives an awaitable) answers `is_`; TimeoutError after `within_s`."""
    async with asyncio.timeout(within_s):
        while True:
            seen = look()
            if inspect.isawaitable(seen):
                seen = await seen
            if seen == is_:
                return
            await asyncio.sleep(0.01)
