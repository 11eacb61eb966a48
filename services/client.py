"""A small client of the feed service, for the command line and the demo."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import grpc

from protos import feed_pb2, feed_pb2_grpc


class FeedClient:
    """Calls one service in plain text, each call with a deadline of `timeout_s` seconds. Use as `async with`."""

    def __init__(self, target: str, *, timeout_s: float = 2.0) -> None:
        self._channel = grpc.aio.insecure_channel(target)
        self._stub = feed_pb2_grpc.FeedServiceStub(self._channel)
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def get_feed(self, request: feed_pb2.GetFeedRequest) -> feed_pb2.GetFeedResponse:
        """One page. Raises grpc.aio.AioRpcError."""
        return await self._stub.GetFeed(request, timeout=self._timeout_s)

    async def record_events(self, request: feed_pb2.RecordEventsRequest) -> feed_pb2.RecordEventsResponse:
        """Stores events. Raises grpc.aio.AioRpcError."""
        return await self._stub.RecordEvents(request, timeout=self._timeout_s)
