"""From the wire to the domain: every limit of feed.proto is checked here, and nowhere else."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from protos import feed_pb2
from services.domain import EventType, FeedRequest, Priority, RecordedEvents, ShopEvent
from services.errors import InvalidArgument

MAX_MESSAGE_BYTES = 64 * 1024
MAX_STRING_BYTES = 256
MAX_WORD_BYTES = 64
MAX_TOKEN_BYTES = 8192
MAX_PAGE_SIZE = 100
MAX_EVENTS = 100
MAX_EXCLUDED = 500
MAX_AHEAD_MS = 5 * 60 * 1000
EARLIEST_MS = 946_684_800_000  # 2000-01-01
DEFAULT_WORD = "default"
_WORD = re.compile(r"[A-Za-z0-9_.-]+")


def feed_request(message: feed_pb2.GetFeedRequest, *, now_ms: int, default_page_size: int) -> FeedRequest:
    """A validated request with its defaults filled in. Raises InvalidArgument naming the first field at fault."""
    if not 0 <= message.page_size <= MAX_PAGE_SIZE:
        raise InvalidArgument("page_size", f"{message.page_size} is outside 0 to {MAX_PAGE_SIZE}")
    token_size = len(message.page_token.encode())
    if token_size > MAX_TOKEN_BYTES:
        raise InvalidArgument("page_token", f"{token_size} bytes, at most {MAX_TOKEN_BYTES}")
    return FeedRequest(
        session_id=_text("session_id", message.session_id),
        user_id=_text("user_id", message.user_id),
        surface=_word("surface", message.surface),
        category=_text("category", message.category),
        region=_text("region", message.region),
        tenant=_word("tenant", message.tenant),
        page_size=message.page_size or default_page_size,
        page_token=message.page_token,
        recent_events=_events("recent_events", message.recent_events, now_ms=now_ms, need_id=False),
        exclude_item_ids=_ids("exclude_item_ids", message.exclude_item_ids),
        priority=Priority.PREFETCH if message.priority == feed_pb2.PRIORITY_PREFETCH else Priority.INTERACTIVE,
    )


def recorded_events(message: feed_pb2.RecordEventsRequest, *, now_ms: int) -> RecordedEvents:
    """Validated events with their defaults filled in. Raises InvalidArgument naming the first field at fault."""
    if not message.session_id:
        raise InvalidArgument("session_id", "is required")
    if not message.events:
        raise InvalidArgument("events", f"is empty: 1 to {MAX_EVENTS} are expected")
    return RecordedEvents(
        session_id=_text("session_id", message.session_id),
        user_id=_text("user_id", message.user_id),
        tenant=_word("tenant", message.tenant),
        region=_text("region", message.region),
        events=_events("events", message.events, now_ms=now_ms, need_id=True),
    )


def _events(field: str, messages: Sequence[feed_pb2.Event], *, now_ms: int, need_id: bool) -> tuple[ShopEvent, ...]:
    if len(messages) > MAX_EVENTS:
        raise InvalidArgument(field, f"{len(messages)} events, at most {MAX_EVENTS}")
    return tuple(_event(f"{field}[{at}]", event, now_ms, need_id) for at, event in enumerate(messages))


def _event(field: str, message: feed_pb2.Event, now_ms: int, need_id: bool) -> ShopEvent:
    if need_id and not message.event_id:
        raise InvalidArgument(f"{field}.event_id", "is required")
    if not message.item_id:
        raise InvalidArgument(f"{field}.item_id", "is required")
    try:
        kind = EventType(message.type)
    except ValueError:
        known = ", ".join(f"{kind.value} ({kind.name})" for kind in EventType)
        raise InvalidArgument(f"{field}.type", f"{message.type} is not one of {known}") from None
    return ShopEvent(
        event_id=_text(f"{field}.event_id", message.event_id),
        item_id=_text(f"{field}.item_id", message.item_id),
        type=kind,
        occurred_at_ms=_time(f"{field}.occurred_at", message, now_ms),
        response_id=_text(f"{field}.response_id", message.response_id),
    )


def _time(field: str, message: feed_pb2.Event, now_ms: int) -> int:
    if not message.HasField("occurred_at"):
        return now_ms
    time = message.occurred_at
    if not 0 <= time.nanos < 1_000_000_000:
        raise InvalidArgument(f"{field}.nanos", f"{time.nanos} is outside 0 to 999999999")
    at_ms = time.seconds * 1000 + time.nanos // 1_000_000
    if not EARLIEST_MS <= at_ms <= now_ms + MAX_AHEAD_MS:
        raise InvalidArgument(field, f"{time.seconds} s is not between 2000-01-01 and 5 minutes from now")
    return at_ms


def _ids(field: str, values: Sequence[str]) -> tuple[str, ...]:
    if len(values) > MAX_EXCLUDED:
        raise InvalidArgument(field, f"{len(values)} ids, at most {MAX_EXCLUDED}")
    for at, value in enumerate(values):
        if not value:
            raise InvalidArgument(f"{field}[{at}]", "is empty")
    return tuple(_text(f"{field}[{at}]", value) for at, value in enumerate(values))


def _text(field: str, value: str) -> str:
    size = len(value.encode())
    if size > MAX_STRING_BYTES:
        raise InvalidArgument(field, f"{size} bytes, at most {MAX_STRING_BYTES}")
    if not value.isprintable() and any(unicodedata.category(char) == "Cc" for char in value):
        raise InvalidArgument(field, "holds a control character")
    return value


def _word(field: str, value: str) -> str:
    if not value:
        return DEFAULT_WORD
    if len(value) > MAX_WORD_BYTES or not _WORD.fullmatch(value):
        raise InvalidArgument(field, f'expected at most {MAX_WORD_BYTES} letters, digits, "_", "-" or "."')
    return value
