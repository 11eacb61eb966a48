"""A client of the feed service: deadlines, retries within a budget, several connections, TLS."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc

from protos import feed_pb2, feed_pb2_grpc
from services.retry import Backoff, RetryBudget

MAX_METADATA_BYTES = 8 << 10
"""Of a call's or an answer's headers together."""
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # Else channels to one address share one connection, hence one worker.
    ("grpc.enable_retries", 0),  # The budget counts all attempts: gRPC makes none of its own.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
)
_Answer = TypeVar("_Answer")
_Attempt = Callable[[float], Awaitable[_Answer]]
"""A call that has so many seconds."""


@dataclass(frozen=True, slots=True)
class Tls:
    """`ca`: PEM file of the authority that signed the service's certificate; None: those that the system trusts.
    `certificate` and `key`: PEM files of the client's own, for a service that asks for one."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """For a channel. Raises OSError naming a file that cannot be read; ValueError for half a pair."""
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key: give both or neither")
        parts = (path.read_bytes() if path else None for path in (self.ca, self.key, self.certificate))
        return grpc.ssl_channel_credentials(*parts)


class FeedClient:
    """Calls one service. Use as `async with`.

    timeout_s    seconds that a call may take, its retries included
    connections  calls take turns over so many, each to whichever worker the system gave it to
    tls          None: plain text
    backoff      of calls that were answered UNAVAILABLE, and of these only: everything else is an answer
    hedge_s      a page that has not come after so long is asked for once more, over the next connection, and the first
                 answer counts; None: never. What is asked twice is paid twice, and out of the retry budget.

    Events are recorded again only where each has an event_id, by which the service knows a repetition.
    """

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float = 2.0,
        connections: int = 1,
        tls: Tls | None = None,
        backoff: Backoff | None = None,
        budget: RetryBudget | None = None,
        hedge_s: float | None = None,
        rng: random.Random | None = None,
    ) -> None:
        credentials = tls.credentials() if tls else None
        self._channels = [
            grpc.aio.secure_channel(target, credentials, options=_OPTIONS)
            if credentials
            else grpc.aio.insecure_channel(target, options=_OPTIONS)
            for _ in range(connections)
        ]
        self._stubs = itertools.cycle([feed_pb2_grpc.FeedServiceStub(channel) for channel in self._channels])
        self._timeout_s = timeout_s
        self._backoff = backoff or Backoff()
        self._budget = budget or RetryBudget()
        self._hedge_s = hedge_s
        self._rng = rng or random.Random()  # noqa: S311 - jitter, not a secret

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for channel in self._channels:
            await channel.close()

    async def get_feed(self, request: feed_pb2.GetFeedRequest) -> feed_pb2.GetFeedResponse:
        """One page. Raises grpc.aio.AioRpcError."""

        def attempt(left_s: float) -> Awaitable[feed_pb2.GetFeedResponse]:
            return next(self._stubs).GetFeed(request, timeout=left_s)

        return await self._called(attempt, self._hedge_s)

    async def record_events(self, request: feed_pb2.RecordEventsRequest) -> feed_pb2.RecordEventsResponse:
        """Stores events. Raises grpc.aio.AioRpcError."""

        def attempt(left_s: float) -> Awaitable[feed_pb2.RecordEventsResponse]:
            return next(self._stubs).RecordEvents(request, timeout=left_s)

        if not all(event.event_id for event in request.events):
            return await attempt(self._timeout_s)
        return await self._called(attempt, None)

    async def _called(self, attempt: _Attempt[_Answer], hedge_s: float | None) -> _Answer:
        """The answer within the deadline: of the first attempt, or of another while the budget has room for it."""
        ends = time.monotonic() + self._timeout_s
        self._budget.called()
        for number in itertools.count(1):
            left_s = ends - time.monotonic()
            try:
                if hedge_s is None:
                    return await attempt(left_s)
                return await self._hedged(attempt, left_s, hedge_s)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or number >= self._backoff.attempts:
                    raise
                pause_s = self._backoff.pause_s(number, self._rng)
                if time.monotonic() + pause_s >= ends or not self._budget.take():
                    raise
            await asyncio.sleep(pause_s)
        raise AssertionError("counting ends with an answer")

    async def _hedged(self, attempt: _Attempt[_Answer], left_s: float, hedge_s: float) -> _Answer:
        """The first good answer of one call or, where it takes its time, of two; the other is cancelled."""
        begun = time.monotonic()
        calls = [asyncio.ensure_future(_answer(attempt(left_s)))]
        try:
            await asyncio.wait(calls, timeout=min(hedge_s, left_s))
            if not calls[0].done() and self._budget.take():
                calls.append(asyncio.ensure_future(_answer(attempt(left_s - (time.monotonic() - begun)))))
            waiting = set(calls)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                good = next((call for call in done if call.exception() is None), None)
                if good is not None:
                    return good.result()
            return calls[0].result()
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


async def _answer(call: Awaitable[_Answer]) -> _Answer:
    return await call
