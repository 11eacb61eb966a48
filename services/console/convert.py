"""JSON bodies to proto messages and back, by protobuf's own JSON mapping; only the enum words are ours."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from protos import feed_pb2
from services.console.schema import EventBody, EventsBody, FeedBody
from services.errors import InvalidArgument

_Message = TypeVar("_Message", feed_pb2.GetFeedRequest, feed_pb2.RecordEventsRequest)


def feed_message(body: FeedBody) -> feed_pb2.GetFeedRequest:
    """The message that a gRPC client would have sent."""
    given = body.model_dump(exclude_none=True)
    given["priority"] = f"PRIORITY_{body.priority.upper()}"
    given["recent_events"] = [_event(event) for event in body.recent_events]
    return _parsed(given, feed_pb2.GetFeedRequest())


def events_message(body: EventsBody) -> feed_pb2.RecordEventsRequest:
    """The message that a gRPC client would have sent."""
    given = body.model_dump(exclude_none=True)
    given["events"] = [_event(event) for event in body.events]
    return _parsed(given, feed_pb2.RecordEventsRequest())


def feed_answer(message: feed_pb2.GetFeedResponse) -> dict[str, Any]:
    """JSON of a page; every field is present."""
    answer = _fields(message)
    for item in answer["items"]:
        item["sources"] = [name.removeprefix("SOURCE_").lower() for name in item["sources"]]
    provenance = answer["provenance"]
    provenance["rung"] = provenance["rung"].removeprefix("RUNG_").lower()
    provenance["cache"] = provenance["cache"].removeprefix("CACHE_OUTCOME_").lower()
    return answer


def events_answer(message: feed_pb2.RecordEventsResponse) -> dict[str, Any]:
    """JSON of a stored batch; every field is present."""
    return _fields(message)


def _event(event: EventBody) -> dict[str, Any]:
    return event.model_dump(exclude_none=True) | {"type": f"EVENT_TYPE_{event.type.upper()}"}


def _parsed(given: dict[str, Any], message: _Message) -> _Message:
    try:
        return ParseDict(given, message)
    except ParseError as error:  # The models let nothing through that this refuses; should one, it is still a 400.
        raise InvalidArgument("body", str(error)) from error


def _fields(message: feed_pb2.GetFeedResponse | feed_pb2.RecordEventsResponse) -> dict[str, Any]:
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
