"""The real service on free ports: gRPC, console, embedded Valkey, a small snapshot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos import feed_pb2
from services.feed.app import FeedApp, open_app
from services.settings import Settings
from tests.snapshots import Shop, publish_shop

Started = Callable[..., AbstractAsyncContextManager[FeedApp]]


def settings_for(folder: Path, **sections: dict[str, Any]) -> Settings:
    """Settings of a service that lives in `folder`, on free ports."""
    given: dict[str, dict[str, Any]] = {
        "serve": {"port": 0, "lame_duck_s": 0, "drain_s": 5},
        "console": {"port": 0},
        "snapshots": {"folder": folder / "snapshots", "watch_s": 0},
        "state": {"folder": folder / "valkey", "timeout_ms": 200},
        "cache": {"timeout_ms": 200},
        "budget": {"page_ms": 2000, "features_ms": 300},
        "scoring": {"admission": "fixed"},
    }
    for name, section in sections.items():
        given[name] = {**given.get(name, {}), **section}
    return Settings.model_validate(given)


@asynccontextmanager
async def client(app: FeedApp) -> AsyncIterator[Client]:
    """A client of the app's gRPC port."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{app.grpc_port}") as channel:
        yield Client(channel)


class Client:
    """Calls by keyword arguments; raw bytes where a test wants to send what no client library would."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self._feed = channel.unary_unary(
            "/feedline.v1.FeedService/GetFeed",
            request_serializer=feed_pb2.GetFeedRequest.SerializeToString,
            response_deserializer=feed_pb2.GetFeedResponse.FromString,
        )
        self._record = channel.unary_unary(
            "/feedline.v1.FeedService/RecordEvents",
            request_serializer=feed_pb2.RecordEventsRequest.SerializeToString,
            response_deserializer=feed_pb2.RecordEventsResponse.FromString,
        )
        self.raw: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(
            "/feedline.v1.FeedService/GetFeed"
        )

    async def feed(self, **fields: Any) -> feed_pb2.GetFeedResponse:
        """GetFeed."""
        return await self._feed(feed_pb2.GetFeedRequest(**fields))

    async def record(self, session_id: str, *events: feed_pb2.Event, **fields: Any) -> feed_pb2.RecordEventsResponse:
        """RecordEvents."""
        return await self._record(feed_pb2.RecordEventsRequest(session_id=session_id, events=events, **fields))


def viewed(
    item_id: str, event_id: str = "", kind: feed_pb2.EventType.ValueType = feed_pb2.EVENT_TYPE_VIEW
) -> feed_pb2.Event:
    """An event of now."""
    return feed_pb2.Event(event_id=event_id, item_id=item_id, type=kind)


@pytest.fixture
def snapshots(tmp_path: Path) -> Path:
    """A folder with one published snapshot of 1,000 items; rows 3 and 10 are hidden, 900..999 are north only."""
    root = tmp_path / "snapshots"
    publish_shop(root, Shop(hidden=frozenset({3, 10}), regional=frozenset(range(900, 1000))))
    return root


@pytest.fixture
async def app(tmp_path: Path, snapshots: Path) -> AsyncIterator[FeedApp]:
    """The service over `snapshots`."""
    async with open_app(settings_for(tmp_path)) as running:
        yield running


@pytest.fixture
async def feed(app: FeedApp) -> AsyncIterator[Client]:
    """A client of `app`."""
    async with client(app) as connected:
        yield connected
