"""Where sealed values are kept: the protocol of a tier, and the tier in the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from cachetools import TLRUCache

# What a value costs in the process beside its bytes: the key object, the record and two table entries.
OVERHEAD_BYTES = 400


class Unavailability(StrEnum):
    """Why a tier did not do what it was asked."""

    TIMEOUT = "timeout"
    REFUSED = "refused"  # No connection, or it broke.
    AUTH = "auth"  # The password, the user or its rights.
    POOL_FULL = "pool_full"
    BREAKER_OPEN = "breaker_open"
    SERVER_ERROR = "server_error"  # The server answered with an error, e.g. out of memory or a key of another type.
    PROTOCOL = "protocol"  # What answered does not speak the protocol.


class CacheError(Exception):
    """The root of what this package raises by intent.

    CacheError
    ├── TierUnavailable      a tier could not be asked; has an `Unavailability`
    ├── ComputeFailed        the computation of a missing answer raised; has its error and the expired answer
    ├── FlightCancelled      a computation was cancelled, though somebody waited for it
    └── EmbeddedServerError  the bundled server cannot be started here
    """


class TierUnavailable(CacheError):
    """A tier could not be asked. The caller goes on without it."""

    def __init__(self, reason: Unavailability, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason


class Tier(Protocol):
    """Keeps bytes under a key for a while; may forget them earlier. Raises nothing but `TierUnavailable`."""

    async def get(self, key: bytes) -> bytes | None:
        """Return the value, or None if there is none."""

    async def set(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` for `ttl_s` seconds (> 0)."""

    async def close(self) -> None:
        """Give back connections and memory."""


@dataclass(frozen=True, slots=True)
class _Held:
    value: bytes
    ttl_s: float
    size: int


class LocalTier:
    """Least-recently-used values in the process, bounded by `max_bytes` and by each value's lifetime.

    Never suspends, so that a read and what follows it are one step of the event loop. A value that is larger than
    the whole tier is not kept.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        if max_bytes <= 0:
            raise ValueError(f"max_bytes: expected more than 0, got {max_bytes}")
        self._max_bytes = max_bytes
        self._held: TLRUCache[bytes, _Held] = TLRUCache(
            maxsize=max_bytes,
            ttu=lambda _key, held, now: now + held.ttl_s,
            timer=clock,
            getsizeof=lambda held: held.size,
        )

    async def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        held = self._held.get(key)
        return None if held is None else held.value

    async def set(self, key: bytes, value: bytes, ttl_s: float) -> None:
        """Keep `value` for `ttl_s` seconds, or until space is needed."""
        size = len(key) + len(value) + OVERHEAD_BYTES
        if size > self._max_bytes:
            self._held.pop(key, None)  # The older value under this key is outdated.
            return
        self._held[key] = _Held(value, ttl_s, size)

    async def close(self) -> None:
        """Forget everything."""
        self._held.clear()

    @property
    def size_bytes(self) -> int:
        """Bytes in use, overhead included."""
        return int(self._held.currsize)

    def __len__(self) -> int:
        return len(self._held)
