"""The way to a Redis or Valkey server: tight time-outs, a bounded pool, a breaker, and one exception."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis
from redis.asyncio.connection import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    InvalidResponse,
    MaxConnectionsError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError

from cache.breaker import Breaker, BreakerState
from cache.tier import TierUnavailable, Unavailability

T = TypeVar("T")

# These say that the server is well, or nothing about it.
_ANSWERED = frozenset({Unavailability.SERVER_ERROR})
_SAYS_NOTHING = frozenset({Unavailability.POOL_FULL})


def open_client(url: str, *, max_connections: int = 64) -> Redis:
    """Return a client for a `redis://`, `rediss://` or `unix://` URL; user, password and database are taken from it.

    Connects when first used. Never retries, never waits for a free connection (`MaxConnectionsError`), and has no
    time-outs of its own: a caller sets one limit around the whole command. redis-py's own write time-out is
    `asyncio.wait_for`, which on Python 3.11 can lose a cancellation. RESP2 spares a round trip when connecting.

    Raises `ValueError` for a URL that cannot be read; the message does not repeat the password.
    """
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("Redis URL: expected redis://, rediss:// or unix://")
    pool = ConnectionPool.from_url(
        url,
        max_connections=max_connections,
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_timeout=None,
        socket_connect_timeout=None,
        driver_info=None,
    )
    return Redis.from_pool(pool)


class RedisLink:
    """Makes calls to one server. A call either returns in `timeout_s` or raises `TierUnavailable`, whatever happens.

    A server that is dead, silent or slow costs the calls in flight one time-out; then the breaker answers at once
    until a probe gets through. A command that is cancelled or late takes its connection with it, so that its reply
    can never be read as another command's.
    """

    def __init__(
        self,
        client: Redis,
        breaker: Breaker | None = None,
        *,
        timeout_s: float = 0.02,
        observe: Callable[[Unavailability], None] | None = None,
    ) -> None:
        """`timeout_s` covers connecting (TLS and login included), sending and receiving. `observe` sees each failure.

        The link owns the client: `close` closes it.
        """
        if timeout_s <= 0:
            raise ValueError(f"timeout_s: expected above 0, got {timeout_s}")
        self._client = client
        self._breaker = breaker or Breaker()
        self._timeout_s = timeout_s
        self._observe = observe

    @property
    def state(self) -> BreakerState:
        """The breaker's state."""
        return self._breaker.state

    async def call(self, operation: Callable[[Redis], Awaitable[T]], *, timeout_s: float | None = None) -> T:
        """Return what `operation` makes of the client. Raises `TierUnavailable`; a cancellation passes through.

        A call that is cancelled after more than half its time counts against the server.
        """
        permit = self._breaker.admit()
        if permit is None:
            raise self._unavailable(Unavailability.BREAKER_OPEN)
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await operation(self._client)
        except (RedisError, OSError, EOFError, ValueError, TypeError, AttributeError, IndexError) as error:
            # TimeoutError is an OSError; redis-py's parser raises the last four on bytes that are not the protocol.
            reason = reason_of(error)
            if reason in _SAYS_NOTHING:
                permit.ignored()
            elif reason in _ANSWERED:
                permit.succeeded()
            else:
                permit.failed()
            raise self._unavailable(reason, str(error)) from error
        except BaseException:
            # A caller with less time than the limit gives up by cancelling, and a silent server must not go unseen.
            if loop.time() - started_at < limit_s / 2:
                permit.ignored()
            else:
                permit.failed()
            raise
        permit.succeeded()
        return answer

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _unavailable(self, reason: Unavailability, detail: str = "") -> TierUnavailable:
        if self._observe is not None:
            self._observe(reason)
        return TierUnavailable(reason, detail)


def expect(answer: object, kind: type[T]) -> T:
    """Return the answer to a command. Raises `InvalidResponse` when it is of another kind: of another command."""
    if not isinstance(answer, kind):
        raise InvalidResponse(f"expected an answer of the kind {kind.__name__}, got {type(answer).__name__}")
    return answer


def reason_of(error: BaseException) -> Unavailability:
    """Say in one word what went wrong. redis-py wraps a refused login on a Unix socket: the cause is looked at too."""
    match error:
        case TimeoutError() | RedisTimeoutError():
            return Unavailability.TIMEOUT
        case MaxConnectionsError():
            return Unavailability.POOL_FULL
        case AuthenticationError() | AuthorizationError() | NoPermissionError():
            return Unavailability.AUTH
        case ResponseError():
            return Unavailability.SERVER_ERROR
        case InvalidResponse() | ValueError() | TypeError() | AttributeError() | IndexError():
            return Unavailability.PROTOCOL
        case _ if error.__cause__ is not None:
            return reason_of(error.__cause__)
        case _:
            return Unavailability.REFUSED
