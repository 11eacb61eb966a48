"""The JSON of the REST interface: the proto's own mapping, snake_case names, enum values as one lower-case word.

The models check shape and type, so that OpenAPI tells what is expected; the limits in the descriptions are checked
once, behind them, by the validation that gRPC goes through too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from google.protobuf.timestamp_pb2 import Timestamp
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

EventWord = Literal["impression", "view", "click", "cart", "purchase"]
PriorityWord = Literal["interactive", "prefetch"]
RungWord = Literal["ranked", "blended", "retrieved", "stale", "popular_category", "popular"]
CacheWord = Literal["off", "unused", "local", "shared", "joined", "miss", "stale"]

SourceWord = Literal["ann", "neighbours", "history", "popularity"]


def _utf8(value: str) -> str:
    if not value.isascii():
        value.encode()  # JSON can spell half a surrogate pair, which no other encoding can: a ValueError.
    return value


Text = Annotated[str, AfterValidator(_utf8)]
Int32 = Annotated[int, Field(strict=True, ge=-(2**31), le=2**31 - 1)]


def _rfc3339(value: str) -> str:
    Timestamp().FromJsonString(value)  # The wire's own parser: what it refuses is a ValueError that names the fault.
    return value


Time = Annotated[
    str,
    AfterValidator(_rfc3339),
    Field(json_schema_extra={"format": "date-time"}, examples=["2026-01-31T12:00:00Z"]),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EventBody(_Body):
    """One thing that a shopper did."""

    event_id: Text = Field(
        default="",
        description="Chosen by the client, unique: an id that was stored before counts once. Required by /v1/events.",
    )
    item_id: Text = Field(description='As it stands in the catalogue ("007" is not "7"); at most 256 bytes.')
    type: EventWord = Field(description="`impression` is kept for learning and never part of a session's context.")
    occurred_at: Time | None = Field(
        default=None, description="RFC 3339. Default: now. Not before 2000-01-01 and at most 5 minutes ahead."
    )
    response_id: Text = Field(default="", description="`provenance.response_id` of the page that led to this event.")


class FeedBody(_Body):
    """`feedline.v1.GetFeedRequest`. Every string is at most 256 bytes of UTF-8 without control characters."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"session_id": "s-1", "page_size": 20},
                {
                    "session_id": "s-1",
                    "surface": "home",
                    "category": "CHEESE",
                    "recent_events": [{"item_id": "1082185", "type": "click"}],
                    "exclude_item_ids": ["995242"],
                },
            ]
        }
    )

    session_id: Text = Field(default="", description="The session whose recorded events are the context.")
    user_id: Text = Field(default="", description="Opaque id of the person. Never part of a cache key.")
    surface: Text = Field(
        default="", description='Where it is shown: letters, digits, "_", "-", "."; at most 64. Default "default".'
    )
    category: Text = Field(default="", description="Only items of this category. Default: all.")
    region: Text = Field(
        default="", description="Only items that may be shown in this region. Default: no restriction."
    )
    tenant: Text = Field(default="", description='Separates several shops. As surface. Default "default".')
    page_size: Int32 = Field(default=0, description="0 to 100; 0: the service's default, 20 unless set.")
    page_token: Text = Field(default="", description="`next_page_token` of the page before; at most 8,192 bytes.")
    recent_events: list[EventBody] = Field(
        default=[], description="What the client knows, oldest first; at most 100. Joined with the recorded events."
    )
    exclude_item_ids: list[Text] = Field(default=[], description="Must not be shown; at most 500.")
    priority: PriorityWord = Field(default="interactive", description="`prefetch` is shed first.")


class EventsBody(_Body):
    """`feedline.v1.RecordEventsRequest`: what shoppers did, to be stored."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"session_id": "s-1", "events": [{"event_id": "e-1", "item_id": "1082185", "type": "click"}]},
            ]
        }
    )

    session_id: Text = Field(description="The browsing session. Not empty; at most 256 bytes.")
    user_id: Text = Field(default="", description="Opaque id of the person.")
    tenant: Text = Field(default="", description="As in /v1/feed.")
    region: Text = Field(default="", description="As in /v1/feed. Kept with the events: popularity is by region.")
    events: list[EventBody] = Field(description="1 to 100; each with an event_id.")


class FeedItemBody(BaseModel):
    """One item of the page."""

    item_id: str
    score: float = Field(description="Higher is better. Comparable within one page only.")
    rank: int = Field(description="From 1, counted over all pages.")
    sources: list[SourceWord | Literal["unspecified"]] = Field(description="What brought it to the page.")


class StageBody(BaseModel):
    """Time spent in one stage."""

    stage: str = Field(description="session, key, cache, queue, retrieve, rerank, personal, slate, total")
    milliseconds: float


class ProvenanceBody(BaseModel):
    """Where the page comes from."""

    rung: RungWord | Literal["unspecified"] = Field(description="How it was made, best first in this list of words.")
    degraded: bool = Field(description="The page is less than the request qualified for.")
    reasons: list[str] = Field(description="Why, in the order met.")
    snapshot_id: str
    ranker_id: str
    cache: CacheWord | Literal["unspecified"]
    cache_age_seconds: float
    stages: list[StageBody]
    response_id: str = Field(description="Give it back in `response_id` of events.")
    context_events: int = Field(description="How many events took part in the question.")
    history_items: int = Field(description="How many items of the person's history took part.")


class FeedAnswer(BaseModel):
    """`feedline.v1.GetFeedResponse`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "items": [{"item_id": "995242", "score": 1.84, "rank": 1, "sources": ["ann", "history"]}],
                    "next_page_token": "AbC...",
                    "provenance": {
                        "rung": "ranked",
                        "degraded": False,
                        "reasons": [],
                        "snapshot_id": "20260131T020000Z-0a1b2c3d",
                        "ranker_id": "9f2c11d0",
                        "cache": "local",
                        "cache_age_seconds": 12.5,
                        "stages": [
                            {"stage": "session", "milliseconds": 0.6},
                            {"stage": "cache", "milliseconds": 0.1},
                            {"stage": "total", "milliseconds": 1.4},
                        ],
                        "response_id": "5f3c...",
                        "context_events": 1,
                        "history_items": 12,
                    },
                }
            ]
        }
    )

    items: list[FeedItemBody]
    next_page_token: str
    provenance: ProvenanceBody


class EventsAnswer(BaseModel):
    """`feedline.v1.RecordEventsResponse`."""

    stored: int = Field(description="Events stored by this call.")
    repeated_events: int = Field(description="Events that had been stored before.")


class CatalogueItem(BaseModel):
    """An item of the snapshot that is served."""

    item_id: str
    title: str
    category: str
    price: float | None = Field(description="null: unknown")
    available: bool


class ItemsAnswer(BaseModel):
    """Items of the snapshot that is served; empty without one."""

    snapshot_id: str
    items: list[CatalogueItem]


class ReadinessAnswer(BaseModel):
    """Whether the service may be sent traffic."""

    ready: bool
    degraded: bool
    snapshot_id: str
    reasons: list[str]
    refused: str = Field(default="", description="Why CURRENT is not what is served; empty when it is.")


class Fault(BaseModel):
    """What is wrong, and where."""

    field: str = Field(description='Path of the field, e.g. "recent_events[3].item_id"; empty when none is at fault.')
    message: str


class FaultAnswer(BaseModel):
    """Every answer that is not a success."""

    error: Fault


def faults(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """FastAPI's `responses` for these statuses."""
    texts = {
        400: "The request is at fault; `field` says where.",
        401: "The write token is missing or wrong.",
        413: "The body is larger than 64 KiB.",
        503: "The events were not stored; it is safe to send them again.",
    }
    return {status: {"model": FaultAnswer, "description": texts[status]} for status in statuses}
