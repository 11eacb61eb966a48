from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from protos import feed_pb2
from services.domain import EventType, Priority
from services.errors import InvalidArgument
from services.feed import validate
from services.feed.validate import feed_request, recorded_events
from tests.properties import examples

NOW_MS = 1_800_000_000_000
INT32 = st.one_of(st.sampled_from([-(2**31), -1, 0, 1, 100, 101, 2**31 - 1]), st.integers(-(2**31), 2**31 - 1))
SECONDS = st.one_of(
    st.sampled_from([-(2**63), -1, 0, 946_684_799, 946_684_800, NOW_MS // 1000, NOW_MS // 1000 + 301, 2**63 - 1]),
    st.integers(NOW_MS // 1000 - 10, NOW_MS // 1000 + 400),
)
NANOS = st.one_of(st.just(0), st.sampled_from([-(2**31), -1, 999_999_999, 1_000_000_000, 2**31 - 1]))
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    st.sampled_from(["a" * 256, "a" * 257, "é" * 128, "é" * 129, "\U0001f375" * 64, "\U0001f375" * 65]),
    st.sampled_from(["\x00", "\x7f", "\x85"]),
)
WORD = st.one_of(st.from_regex(r"[A-Za-z0-9_.-]{0,64}", fullmatch=True), TEXT)
EVENTS = st.builds(
    feed_pb2.Event,
    event_id=TEXT,
    item_id=TEXT,
    type=st.one_of(st.integers(0, 6), INT32),
    occurred_at=st.none() | st.builds(Timestamp, seconds=SECONDS, nanos=NANOS),
    response_id=TEXT,
)
REQUESTS = st.builds(
    feed_pb2.GetFeedRequest,
    session_id=TEXT,
    user_id=TEXT,
    surface=WORD,
    category=TEXT,
    region=TEXT,
    tenant=WORD,
    page_size=st.one_of(st.integers(0, 100), INT32),
    page_token=TEXT,
    recent_events=st.lists(EVENTS, max_size=3),
    exclude_item_ids=st.lists(TEXT, max_size=3),
    priority=INT32,
)
RECORDS = st.builds(
    feed_pb2.RecordEventsRequest,
    session_id=TEXT,
    user_id=TEXT,
    tenant=WORD,
    region=TEXT,
    events=st.lists(EVENTS, max_size=3),
)
EVENT_FIELDS = r"\[\d+\]\.(event_id|item_id|type|occurred_at(\.nanos)?|response_id)"
FEED_FIELDS = re.compile(
    rf"(session_id|user_id|surface|category|region|tenant|page_size|page_token|recent_events({EVENT_FIELDS})?"
    r"|exclude_item_ids(\[\d+\])?)"
)
RECORD_FIELDS = re.compile(rf"(session_id|user_id|region|tenant|events({EVENT_FIELDS})?)")


def ask(message: feed_pb2.GetFeedRequest | None = None, **fields: Any) -> Any:
    return feed_request(message or feed_pb2.GetFeedRequest(**fields), now_ms=NOW_MS, default_page_size=20)


def record(message: feed_pb2.RecordEventsRequest | None = None, **fields: Any) -> Any:
    return recorded_events(message or feed_pb2.RecordEventsRequest(**fields), now_ms=NOW_MS)


def event(**fields: Any) -> feed_pb2.Event:
    return feed_pb2.Event(**{"item_id": "i", "event_id": "e", "type": 2, **fields})


def fields(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


def refused(field: str, call: Callable[..., Any], **fields: Any) -> str:
    with pytest.raises(InvalidArgument) as error:
        call(**fields)
    assert error.value.field == field
    assert str(error.value).startswith(f"{field}: ")
    return error.value.message


def outcome(call: Callable[..., Any], message: object) -> tuple[Any, str]:
    """What the message became, or None and the field at fault."""
    try:
        return call(message), ""
    except InvalidArgument as error:
        return None, error.field


def in_text_limits(value: str) -> bool:
    return len(value.encode()) <= 256 and not re.search(r"[\x00-\x1f\x7f-\x9f]", value)


@examples(400)
@given(REQUESTS)
def test_any_request_is_within_every_limit_or_refused_by_field(message: feed_pb2.GetFeedRequest) -> None:
    request, field = outcome(ask, message)
    if request is None:
        assert FEED_FIELDS.fullmatch(field)
        return
    texts = [request.session_id, request.user_id, request.category, request.region, *request.exclude_item_ids]
    for one in request.recent_events:
        texts += [one.event_id, one.item_id, one.response_id]
        assert one.item_id
        assert 946_684_800_000 <= one.occurred_at_ms <= NOW_MS + 300_000
    assert all(map(in_text_limits, texts))
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", word) for word in (request.surface, request.tenant))
    assert 1 <= request.page_size <= 100
    assert all(request.exclude_item_ids)
    assert request.priority in Priority


@examples(300)
@given(RECORDS)
def test_any_events_are_within_every_limit_or_refused_by_field(message: feed_pb2.RecordEventsRequest) -> None:
    recorded, field = outcome(record, message)
    if recorded is None:
        assert RECORD_FIELDS.fullmatch(field)
        return
    assert recorded.session_id
    assert recorded.events
    assert all(one.event_id and one.item_id for one in recorded.events)


def test_an_empty_request_has_the_defaults_of_the_contract() -> None:
    request = ask()
    assert (request.surface, request.tenant, request.page_size) == ("default", "default", 20)
    assert (request.session_id, request.user_id, request.category, request.region, request.page_token) == ("",) * 5
    assert (request.recent_events, request.exclude_item_ids) == ((), ())
    assert request.priority is Priority.INTERACTIVE


@pytest.mark.parametrize("field", ["session_id", "user_id", "category", "region"])
@pytest.mark.parametrize(
    "text", ["", "a" * 256, "é" * 128, "\U0001f375" * 64, " ", "\u200b", "\u2028", "\u00ad", "e\u0301", "\uff46", "<b>"]
)
def test_text_up_to_256_bytes_is_kept_as_it_is(field: str, text: str) -> None:
    assert getattr(ask(**fields(field, text)), field) == text


@pytest.mark.parametrize("field", ["session_id", "user_id", "category", "region"])
@pytest.mark.parametrize(
    "text", ["a" * 257, "é" * 128 + "a", "\U0001f375" * 65, "\0", "a\n", "\x1f", "\x7f", "\x80", "\x9f"]
)
def test_longer_text_and_control_characters_are_refused(field: str, text: str) -> None:
    refused(field, ask, **{field: text})
    if field != "category":
        refused(field, record, **{"session_id": "s", "events": [event()], field: text})


@pytest.mark.parametrize("field", ["surface", "tenant"])
def test_words_are_letters_digits_and_three_signs(field: str) -> None:
    for good in ("a" * 64, "Az09_-."):
        assert getattr(ask(**fields(field, good)), field) == good
    for bad in ("a" * 65, "a b", "é", "a\n", "\0", "a/b", "\u0663"):
        refused(field, ask, **fields(field, bad))


@pytest.mark.parametrize(("given_size", "size"), [(0, 20), (1, 1), (99, 99), (100, 100)])
def test_page_sizes_in_range(given_size: int, size: int) -> None:
    assert ask(page_size=given_size).page_size == size


@pytest.mark.parametrize("size", [-(2**31), -1, 101, 2**31 - 1])
def test_page_sizes_out_of_range(size: int) -> None:
    assert str(size) in refused("page_size", ask, page_size=size)


def test_a_page_token_has_at_most_8192_bytes() -> None:
    assert ask(page_token="a" * 8192).page_token == "a" * 8192
    refused("page_token", ask, page_token="a" * 8193)
    refused("page_token", ask, page_token="é" * 4097)


def test_the_number_of_events_is_limited() -> None:
    assert len(ask(recent_events=[event()] * 100).recent_events) == 100
    refused("recent_events", ask, recent_events=[event()] * 101)
    assert len(record(session_id="s", events=[event()] * 100).events) == 100
    refused("events", record, session_id="s", events=[event()] * 101)
    refused("events", record, session_id="s")
    refused("session_id", record, events=[event()])


def test_the_number_of_excluded_items_is_limited_and_none_is_empty() -> None:
    assert len(ask(exclude_item_ids=["i"] * 500).exclude_item_ids) == 500
    refused("exclude_item_ids", ask, exclude_item_ids=["i"] * 501)
    refused("exclude_item_ids[499]", ask, exclude_item_ids=[*["i"] * 499, ""])
    refused("exclude_item_ids[1]", ask, exclude_item_ids=["i", "\0", "\0"])


@pytest.mark.parametrize(("given_priority", "priority"), [(0, 1), (1, 1), (2, 2), (3, 1), (-1, 1), (2**31 - 1, 1)])
def test_unknown_priorities_are_interactive(given_priority: int, priority: int) -> None:
    assert ask(priority=given_priority).priority == priority


@pytest.mark.parametrize("field", ["event_id", "item_id", "response_id"])
def test_the_path_of_an_event_leads_to_its_field(field: str) -> None:
    events = [event(), event(), event(), event(**{field: "a" * 257}), event(type=0)]
    refused(f"recent_events[3].{field}", ask, recent_events=events)
    refused(f"events[3].{field}", record, session_id="s", events=events)


def test_an_event_needs_an_item_and_a_recorded_one_an_id() -> None:
    refused("recent_events[0].item_id", ask, recent_events=[event(item_id="")])
    refused("events[1].item_id", record, session_id="s", events=[event(), event(item_id="")])
    refused("events[1].event_id", record, session_id="s", events=[event(), event(event_id="")])
    assert ask(recent_events=[event(event_id="")]).recent_events[0].event_id == ""


@pytest.mark.parametrize("kind", [0, 6, -1, 2**31 - 1, -(2**31)])
def test_types_of_events_that_are_none_are_refused(kind: int) -> None:
    message = refused("recent_events[0].type", ask, recent_events=[event(type=kind)])
    assert message.startswith(f"{kind} is not one of 1 (IMPRESSION), 2 (VIEW)")


@pytest.mark.parametrize("kind", list(EventType))
def test_every_type_of_event_is_known(kind: EventType) -> None:
    assert record(session_id="s", events=[event(type=int(kind))]).events[0].type is kind


def at(seconds: int, nanos: int = 0) -> list[feed_pb2.Event]:
    return [event(occurred_at=Timestamp(seconds=seconds, nanos=nanos))]


@pytest.mark.parametrize(
    ("seconds", "nanos", "at_ms"),
    [
        (946_684_800, 0, 946_684_800_000),
        (1_799_999_999, 999_999_999, 1_799_999_999_999),
        (1_800_000_000, 1_999_999, NOW_MS + 1),
        (1_800_000_300, 0, NOW_MS + 300_000),
    ],
)
def test_times_in_range_are_kept_to_the_millisecond(seconds: int, nanos: int, at_ms: int) -> None:
    assert ask(recent_events=at(seconds, nanos)).recent_events[0].occurred_at_ms == at_ms


@pytest.mark.parametrize(
    "seconds", [0, -1, 946_684_799, 1_800_000_301, 253_402_300_800, 2**63 - 1, -(2**63), 2**53, 10**18]
)
def test_times_out_of_range_are_refused(seconds: int) -> None:
    message = refused("recent_events[0].occurred_at", ask, recent_events=at(seconds))
    assert str(seconds) in message


def test_one_millisecond_too_far_ahead_is_too_far() -> None:
    refused("recent_events[0].occurred_at", ask, recent_events=at(1_800_000_300, 1_000_000))
    refused("recent_events[0].occurred_at", ask, recent_events=at(946_684_799, 999_999_999))


@pytest.mark.parametrize("nanos", [-1, 1_000_000_000, 2**31 - 1, -(2**31)])
def test_nanoseconds_out_of_range_are_refused(nanos: int) -> None:
    refused("events[0].occurred_at.nanos", record, session_id="s", events=at(1_800_000_000, nanos))


def test_an_event_without_a_time_is_of_now() -> None:
    assert ask(recent_events=[event()]).recent_events[0].occurred_at_ms == NOW_MS


def test_the_limits_are_those_that_the_contract_states() -> None:
    assert (validate.MAX_STRING_BYTES, validate.MAX_WORD_BYTES, validate.MAX_TOKEN_BYTES) == (256, 64, 8192)
    assert (validate.MAX_PAGE_SIZE, validate.MAX_EVENTS, validate.MAX_EXCLUDED) == (100, 100, 500)
    assert validate.MAX_MESSAGE_BYTES == 65536
