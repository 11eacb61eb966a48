"""The handlers: parse, call, encode. gRPC and REST both come through `FeedServicer`: one line, one validation."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, NoReturn, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from protos import feed_pb2
from services.domain import FeedPage
from services.errors import InvalidArgument, StateUnavailable
from services.feed.event_stream import EventStream
from services.feed.page import FeedLine
from services.feed.validate import MAX_MESSAGE_BYTES, feed_request, recorded_events
from services.metrics import Metrics

log = structlog.get_logger()
SERVICE = "feedline.v1.FeedService"
_Request = TypeVar("_Request", bound=Message)
_Response = TypeVar("_Response", bound=Message)
_Context = grpc.aio.ServicerContext[Any, Any]


class FeedServicer:
    """`feedline.v1.FeedService`, free of transport."""

    def __init__(
        self,
        line: FeedLine,
        stream: EventStream,
        metrics: Metrics,
        *,
        page_size: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`now`: Unix time in seconds; events without a time happened then, and none happens much later."""
        self._line = line
        self._stream = stream
        self._metrics = metrics
        self._page_size = page_size
        self._now = now
        # Finding a metric by its labels costs as much as counting; of these there are few.
        self._reason = cache(metrics.reasons.labels)
        self._source = cache(metrics.sources.labels)
        self._stage = cache(metrics.stage_seconds.labels)
        self._total = cache(metrics.page_seconds.labels)

    async def get_feed(self, message: feed_pb2.GetFeedRequest, caller_s: float | None) -> feed_pb2.GetFeedResponse:
        """A page. `caller_s`: seconds that the caller still waits, None: no limit. Raises InvalidArgument."""
        try:
            request = feed_request(message, now_ms=self._now_ms(), default_page_size=self._page_size)
            page = await self._line.page(request, caller_s)
        except InvalidArgument:
            self._metrics.invalid.labels("GetFeed").inc()
            raise
        self._count(page)
        return encode(page)

    async def record_events(self, message: feed_pb2.RecordEventsRequest) -> feed_pb2.RecordEventsResponse:
        """Stores events. Raises InvalidArgument; StateUnavailable when they are not stored."""
        try:
            recorded = await self._stream.record(recorded_events(message, now_ms=self._now_ms()))
        except InvalidArgument:
            self._metrics.invalid.labels("RecordEvents").inc()
            raise
        except StateUnavailable as error:
            self._metrics.events.labels("unavailable").inc(len(message.events))
            log.warning("events not stored", reason=error.reason)
            raise
        self._metrics.events.labels("stored").inc(recorded.stored)
        self._metrics.events.labels("repeated").inc(recorded.repeated)
        return feed_pb2.RecordEventsResponse(stored=recorded.stored, repeated_events=recorded.repeated)

    def _now_ms(self) -> int:
        return int(self._now() * 1000)

    def _count(self, page: FeedPage) -> None:
        provenance, metrics = page.provenance, self._metrics
        rung = provenance.rung.name.lower()
        metrics.pages.labels(rung, str(provenance.degraded).lower()).inc()
        metrics.cache.labels(provenance.cache.name.lower()).inc()
        for source, count in Counter(source for item in page.items for source in item.sources).items():
            self._source(source.name.lower()).inc(count)
        for reason in provenance.reasons:
            self._reason(reason).inc()
        for stage, milliseconds in provenance.stages:
            if stage == "total":
                self._total(rung).observe(milliseconds / 1e3)
            else:
                self._stage(stage).observe(milliseconds / 1e3)


def encode(page: FeedPage) -> feed_pb2.GetFeedResponse:
    """A page as it goes over the wire."""
    provenance = page.provenance
    return feed_pb2.GetFeedResponse(
        items=[
            feed_pb2.FeedItem(
                item_id=item.item_id,
                score=item.score,
                rank=item.rank,
                sources=[feed_pb2.Source.ValueType(source) for source in item.sources],
            )
            for item in page.items
        ],
        next_page_token=page.next_page_token,
        provenance=feed_pb2.Provenance(
            rung=feed_pb2.Rung.ValueType(provenance.rung),
            degraded=provenance.degraded,
            reasons=provenance.reasons,
            snapshot_id=provenance.snapshot_id,
            ranker_id=provenance.ranker_id,
            cache=feed_pb2.CacheOutcome.ValueType(provenance.cache),
            cache_age_seconds=provenance.cache_age_s,
            stages=[feed_pb2.StageTime(stage=name, milliseconds=took) for name, took in provenance.stages],
            response_id=provenance.response_id,
            context_events=provenance.context_events,
            history_items=provenance.history_items,
        ),
    )


def grpc_handlers(servicer: FeedServicer) -> grpc.GenericRpcHandler:
    """The service's handlers. Messages are parsed here, so that a malformed one is INVALID_ARGUMENT, not INTERNAL."""

    async def get_feed(message: feed_pb2.GetFeedRequest, context: _Context) -> feed_pb2.GetFeedResponse:
        return await servicer.get_feed(message, context.time_remaining())

    async def record_events(message: feed_pb2.RecordEventsRequest, context: _Context) -> feed_pb2.RecordEventsResponse:
        return await servicer.record_events(message)

    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "GetFeed": _unary(get_feed, feed_pb2.GetFeedRequest),
            "RecordEvents": _unary(record_events, feed_pb2.RecordEventsRequest),
        },
    )


def _unary(
    call: Callable[[_Request, _Context], Awaitable[_Response]], kind: type[_Request]
) -> grpc.RpcMethodHandler[bytes, bytes]:
    async def handle(data: bytes, context: _Context) -> bytes:
        try:
            return (await call(_parse(data, kind), context)).SerializeToString()
        except InvalidArgument as error:
            await _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except StateUnavailable as error:
            await _abort(context, grpc.StatusCode.UNAVAILABLE, error.reason)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # A cancel from within that leaves a handler hangs the client (grpc/grpc#29248).
            log.error("a handler was cancelled from within")
            await _abort(context, grpc.StatusCode.UNAVAILABLE, "cancelled within the service")
        except Exception:
            # Left to grpc.aio, the text of the exception would go to the client.
            log.exception("a handler failed", method=kind.DESCRIPTOR.name)
            await _abort(context, grpc.StatusCode.INTERNAL, "failed within the service")

    return grpc.unary_unary_rpc_method_handler(handle)


def _parse(data: bytes, kind: type[_Request]) -> _Request:
    if len(data) > MAX_MESSAGE_BYTES:
        raise InvalidArgument("request", f"{len(data)} bytes, at most {MAX_MESSAGE_BYTES}")
    message = kind()
    try:
        message.ParseFromString(data)
    except (DecodeError, UnicodeDecodeError):
        name = kind.DESCRIPTOR.full_name
        raise InvalidArgument("request", f"is not a {name}, or holds text that is not UTF-8") from None
    return message


async def _abort(context: _Context, code: grpc.StatusCode, detail: str) -> NoReturn:
    await context.abort(code, detail)
    raise AssertionError("abort raises")
