"""A Lua script on the state server."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from hashlib import sha1
from typing import cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError


class Script:
    """Sent once, then called by its digest. In a cluster the keys of a call must be of one slot."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def __call__(
        self, client: Redis, keys: Sequence[str | bytes], arguments: Sequence[str | bytes | int]
    ) -> object:
        """What the script returns. Raises redis-py's errors."""
        try:
            return await cast("Awaitable[object]", client.evalsha(self.digest, len(keys), *keys, *arguments))
        except NoScriptError:  # The server is new, or its scripts were flushed. EVAL loads the script, too.
            return await cast("Awaitable[object]", client.eval(self.text, len(keys), *keys, *arguments))
