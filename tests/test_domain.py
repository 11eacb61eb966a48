from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from fallback.ladder import Reason, Rung
from protos import feed_pb2
from services.domain import CacheOutcome, EventType, Priority, Provenance
from services.errors import FeedlineError, InvalidArgument, NotScored, StartError, StateUnavailable


@pytest.mark.parametrize(
    ("ours", "wire", "prefix"),
    [
        (EventType, feed_pb2.EventType, "EVENT_TYPE_"),
        (Priority, feed_pb2.Priority, "PRIORITY_"),
        (CacheOutcome, feed_pb2.CacheOutcome, "CACHE_OUTCOME_"),
    ],
)
def test_the_numbers_are_those_of_the_wire(ours: type[IntEnum], wire: Any, prefix: str) -> None:
    assert {one.name: one.value for one in ours} == {
        name.removeprefix(prefix): number for name, number in wire.items() if number
    }


def provenance(*reasons: Reason) -> Provenance:
    return Provenance(Rung.RANKED, reasons, "", "", CacheOutcome.MISS, 0.0, (), "", 0, 0)


def test_a_page_is_degraded_by_any_reason_that_degrades() -> None:
    assert not provenance().degraded
    assert not provenance(Reason.NO_CONTEXT, Reason.CACHE_UNAVAILABLE).degraded
    assert provenance(Reason.NO_CONTEXT, Reason.NO_TIME).degraded


def test_errors_say_where_and_why_in_one_line() -> None:
    assert str(InvalidArgument("events[3].item_id", "is required")) == "events[3].item_id: is required"
    assert str(NotScored(Reason.NO_TIME)) == "no_time"
    assert str(NotScored(Reason.NO_TIME, "in the queue")) == "no_time: in the queue"
    assert StateUnavailable("timeout").reason == "timeout"
    assert all(issubclass(kind, FeedlineError) for kind in (InvalidArgument, NotScored, StateUnavailable, StartError))
