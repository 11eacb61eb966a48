"""Whatever is sent: OK, or INVALID_ARGUMENT naming the field."""

from __future__ import annotations

import asyncio
import random
import re
import string
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from protos import feed_pb2
from tests.feed.conftest import Client

REQUESTS = 5_000
CONCURRENT = 25
FIELD = re.compile(r"^[a-z_]+(\[\d+\])?(\.[a-z_]+)*: .+")

_any_text = st.text(max_size=300)
_word = st.one_of(st.just(""), st.text(string.ascii_letters + string.digits + "_.-", max_size=70), _any_text)
_item = st.one_of(st.integers(0, 1200).map(lambda number: f"i{number}"), _any_text)
_int32 = st.integers(-(2**31), 2**31 - 1)
_event = st.fixed_dictionaries(
    {"item_id": _item, "type": st.one_of(st.integers(0, 5), _int32), "event_id": _word},
    optional={
        "occurred_at": st.fixed_dictionaries(
            {
                "seconds": st.one_of(st.integers(1_700_000_000, 1_800_000_000), st.integers(-(2**63), 2**63 - 1)),
                "nanos": st.one_of(st.just(0), _int32),
            }
        )
    },
)
_request = st.fixed_dictionaries(
    {},
    optional={
        "session_id": _word,
        "user_id": _word,
        "surface": _word,
        "category": st.one_of(st.sampled_from(["tea", "coffee", "cups"]), _any_text),
        "region": st.one_of(st.sampled_from(["north", "south"]), _any_text),
        "tenant": _word,
        "page_size": st.one_of(st.integers(0, 100), _int32),
        "page_token": _any_text,
        "recent_events": st.lists(_event, max_size=4),
        "exclude_item_ids": st.lists(_item, max_size=4),
        "priority": st.one_of(st.integers(0, 2), _int32),
    },
)


@pytest.mark.timeout(300)
async def test_random_and_mutated_requests_are_ok_or_invalid_by_name(feed: Client) -> None:
    rng = random.Random(20261130)
    tokens = [(await feed.feed(page_size=5)).next_page_token]
    bodies = [_mutated(rng, body) if rng.random() < 0.5 else body for body in _bodies(rng, tokens)]
    statuses: dict[str, int] = {}
    details: list[str] = []
    for start in range(0, REQUESTS, CONCURRENT):
        for code, detail in await asyncio.gather(*(_send(feed, body) for body in bodies[start : start + CONCURRENT])):
            statuses[code] = statuses.get(code, 0) + 1
            if code != "OK":
                details.append(detail)
    assert set(statuses) == {"OK", "INVALID_ARGUMENT"}, statuses
    assert sum(statuses.values()) == REQUESTS
    assert min(statuses.values()) > REQUESTS / 20, statuses  # both sides of the fence were visited
    assert [detail for detail in details if not FIELD.match(detail)] == []


def _bodies(rng: random.Random, tokens: list[str]) -> list[bytes]:
    """Requests drawn from `_request`; some with a real page token."""
    bodies: list[bytes] = []

    @seed(rng.randrange(2**32))
    @settings(max_examples=REQUESTS, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(_request)
    def draw(fields: dict[str, Any]) -> None:
        if rng.random() < 0.1:
            fields = fields | {"page_token": rng.choice(tokens)}
        bodies.append(feed_pb2.GetFeedRequest(**fields).SerializeToString())

    while len(bodies) < REQUESTS:
        draw()
    return bodies[:REQUESTS]


def _mutated(rng: random.Random, body: bytes) -> bytes:
    """The body with a few bytes flipped, removed, repeated or added."""
    data = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        match rng.randrange(4):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at : at + rng.randint(1, 8)]
            case 2:
                data[at:at] = data[at : at + rng.randint(1, 64)]
            case _:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
    return bytes(data)


async def _send(feed: Client, body: bytes) -> tuple[str, str]:
    try:
        feed_pb2.GetFeedResponse.FromString(await feed.raw(body))
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""
    return "OK", ""
