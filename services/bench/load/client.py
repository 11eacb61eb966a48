"""Asks a feed service over gRPC: messages are serialised before the run, answers are read for what is measured."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import grpc

from protos import feed_pb2
from services.bench.load.ask import OK, Outcome
from services.bench.load.mix import Asked
from services.errors import StartError

Call = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
_METHOD = "/feedline.v1.FeedService/GetFeed"
_RUNGS = {number: name.removeprefix("RUNG_") for name, number in feed_pb2.Rung.items()}
_CACHE = {number: name.removeprefix("CACHE_OUTCOME_") for name, number in feed_pb2.CacheOutcome.items()}
_CONNECT_S = 10.0
_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
MEASURED_STAGES = frozenset({"queue", "retrieve", "rerank", "total"})


@asynccontextmanager
async def calls_to(target: str, channels: int) -> AsyncIterator[list[Call]]:
    """GetFeed over `channels` connections to host:port, in plain text, all of them ready.

    Raises StartError when nobody listens there.
    """
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(grpc.aio.insecure_channel(target, options=_OWN_CONNECTION))
            for _ in range(channels)
        ]
        try:
            async with asyncio.timeout(_CONNECT_S):
                for channel in opened:
                    await channel.channel_ready()
        except TimeoutError:
            raise StartError(f"{target}: nobody answers there within {_CONNECT_S:g} s") from None
        yield [channel.unary_unary(_METHOD) for channel in opened]


class GrpcAsk:
    """An `Ask`: request `index` goes over connection `index` modulo their number, with a deadline of `deadline_s`.

    A next page is asked with the token of the page before it; where that has not come yet, or was the last, the first
    page is asked for, and counted in `without_token`.
    """

    def __init__(self, calls: Sequence[Call], asked: Sequence[Asked], *, deadline_s: float) -> None:
        self._calls = calls
        self._deadline_s = deadline_s
        self._payloads = [one.message.SerializeToString() for one in asked]
        self._follows = {at: one.follows for at, one in enumerate(asked) if one.follows >= 0}
        self._wanted = frozenset(self._follows.values())
        self._tokens: dict[int, str] = {}
        self.without_token = 0

    async def __call__(self, index: int) -> Outcome:
        """As `Ask` says."""
        call = self._calls[index % len(self._calls)]
        try:
            data = await call(self._payload(index), timeout=self._deadline_s)
        except grpc.aio.AioRpcError as error:
            return Outcome(code=error.code().name)
        answer = feed_pb2.GetFeedResponse.FromString(data)
        if index in self._wanted:
            self._tokens[index] = answer.next_page_token
        said = answer.provenance
        return Outcome(
            code=OK,
            rung=_RUNGS.get(said.rung, "UNSPECIFIED"),
            degraded=said.degraded,
            cache=_CACHE.get(said.cache, "UNSPECIFIED"),
            reasons=tuple(said.reasons),
            stages=tuple((one.stage, one.milliseconds) for one in said.stages if one.stage in MEASURED_STAGES),
            size=len(data),
        )

    def _payload(self, index: int) -> bytes:
        before = self._follows.get(index)
        if before is None:
            return self._payloads[index]
        token = self._tokens.get(before, "")
        if not token:
            self.without_token += 1
            return self._payloads[index]
        # Messages that follow each other on the wire are merged: the token is added without parsing the rest.
        return self._payloads[index] + feed_pb2.GetFeedRequest(page_token=token).SerializeToString()


async def record_histories(target: str, users: Sequence[str], items: Sequence[Sequence[str]]) -> None:
    """Stores purchases of each user, so that the service knows a history. Raises StartError when it cannot."""
    async with grpc.aio.insecure_channel(target) as channel:
        record = channel.unary_unary(
            "/feedline.v1.FeedService/RecordEvents",
            request_serializer=feed_pb2.RecordEventsRequest.SerializeToString,
            response_deserializer=feed_pb2.RecordEventsResponse.FromString,
        )
        number = itertools.count()
        for user, bought in zip(users, items, strict=True):
            events = [
                feed_pb2.Event(event_id=f"{user}-{next(number)}", item_id=item, type=feed_pb2.EVENT_TYPE_PURCHASE)
                for item in bought
            ]
            try:
                await record(feed_pb2.RecordEventsRequest(session_id=f"{user}-then", user_id=user, events=events))
            except grpc.aio.AioRpcError as error:
                raise StartError(f"{target}: histories could not be stored: {error.details()}") from error
