"""The shared tier: a Redis or Valkey server."""

from __future__ import annotations

import math

from redis.asyncio import Redis

from cache.envelope import HEADER_BYTES
from cache.redis_link import RedisLink, expect


class RedisTier:
    """Keeps values on a server that other processes share. Raises `TierUnavailable` with its reason, nothing else."""

    def __init__(self, link: RedisLink, *, prefix: str = "", max_value_bytes: int = 65536 + HEADER_BYTES) -> None:
        """All keys get the `prefix`, so that one ACL rule covers them.

        No more than `max_value_bytes` + 1 bytes are read of a value, whatever somebody else stored under the key. The
        tier owns the link: `close` closes it.
        """
        self._link = link
        self._prefix = prefix.encode()
        self._last_byte = max_value_bytes

    async def get(self, key: bytes) -> bytes | None:
        """Return the value, or None. A value above the limit comes truncated, and its checksum says so."""

        async def read(client: Redis) -> bytes:
            return expect(await client.getrange(self._prefix + key, 0, self._last_byte), bytes)

        return await self._link.call(read) or None  # GETRANGE answers a missing key with an empty value.

    async def set(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` for `ttl_s` seconds, rounded up to milliseconds."""
        ttl_ms = max(1, math.ceil(ttl_s * 1000))
        await self._link.call(lambda client: client.set(self._prefix + key, value, px=ttl_ms))

    async def close(self) -> None:
        """Close the connections."""
        await self._link.close()
