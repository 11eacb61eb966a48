"""REST over a real port: the same line and the same validation as gRPC."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from protos import feed_pb2
from services.feed.app import FeedApp, open_app
from tests.console.conftest import http_client
from tests.feed.conftest import client, settings_for

VIEW = {"item_id": "i5", "type": "view"}


def fault(answer: httpx.Response) -> tuple[str, str]:
    body = answer.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"field", "message"}
    return body["error"]["field"], body["error"]["message"]


async def test_a_page_over_rest_is_the_page_over_grpc(app: FeedApp, http: httpx.AsyncClient) -> None:
    body = {"recent_events": [VIEW], "page_size": 7, "exclude_item_ids": ["i9"], "surface": "home"}
    event = feed_pb2.Event(item_id="i5", type=feed_pb2.EVENT_TYPE_VIEW)
    async with client(app) as wire:
        over_grpc = await wire.feed(recent_events=[event], page_size=7, exclude_item_ids=["i9"], surface="home")
    over_rest = (await http.post("/v1/feed", json=body)).raise_for_status().json()
    assert [item["item_id"] for item in over_rest["items"]] == [item.item_id for item in over_grpc.items]
    assert [item["rank"] for item in over_rest["items"]] == list(range(1, 8))
    source = over_rest["provenance"]
    assert (source["rung"], source["degraded"], source["reasons"], source["cache"]) == ("ranked", False, [], "local")
    assert source["context_events"] == 1
    assert source["stages"][-1]["stage"] == "total"


async def test_an_event_stored_over_rest_is_in_the_very_next_feed_and_counts_once(http: httpx.AsyncClient) -> None:
    body = {"session_id": "s1", "events": [VIEW | {"event_id": "e1", "occurred_at": "2026-01-31T12:00:00.5Z"}]}
    assert (await http.post("/v1/events", json=body)).json() == {"stored": 1, "repeated_events": 0}
    assert (await http.post("/v1/events", json=body)).json() == {"stored": 0, "repeated_events": 1}
    page = (await http.post("/v1/feed", json={"session_id": "s1"})).json()
    assert page["provenance"]["context_events"] == 1
    assert page["provenance"]["rung"] == "ranked"
    assert {word for item in page["items"] for word in item["sources"]} == {"ann", "neighbours"}


async def test_what_was_bought_is_history_in_the_next_session(http: httpx.AsyncClient) -> None:
    bought = {"item_id": "i500", "type": "purchase", "event_id": "e1"}
    body = {"session_id": "s1", "user_id": "ann", "events": [bought]}
    assert (await http.post("/v1/events", json=body)).json() == {"stored": 1, "repeated_events": 0}
    page = (await http.post("/v1/feed", json={"session_id": "s2", "user_id": "ann"})).json()
    assert page["provenance"]["history_items"] == 1
    assert (page["items"][0]["item_id"], page["items"][0]["sources"]) == ("i500", ["history"])


async def test_pages_follow_each_other(http: httpx.AsyncClient) -> None:
    first = (await http.post("/v1/feed", json={})).json()
    second = (await http.post("/v1/feed", json={"page_token": first["next_page_token"]})).json()
    assert [item["rank"] for item in second["items"]] == list(range(21, 41))


MISSHAPEN: list[tuple[str, str | bytes, str]] = [
    ("/v1/feed", "[]", "body"),
    ("/v1/feed", "{", "body"),
    ("/v1/feed", "[" * 60_000, ""),
    ("/v1/feed", b'{"session_id": "\xff"}', ""),
    ("/v1/feed", '{"session_id": "\\ud800"}', "session_id"),
    ("/v1/feed", '{"sessionId": "s"}', "sessionId"),
    ("/v1/feed", '{"session_id": 7}', "session_id"),
    ("/v1/feed", '{"session_id": null}', "session_id"),
    ("/v1/feed", '{"page_size": "20"}', "page_size"),
    ("/v1/feed", '{"page_size": true}', "page_size"),
    ("/v1/feed", '{"page_size": 2147483648}', "page_size"),
    ("/v1/feed", '{"page_size": NaN}', "page_size"),
    ("/v1/feed", '{"priority": "PRIORITY_PREFETCH"}', "priority"),
    ("/v1/feed", '{"recent_events": {}}', "recent_events"),
    ("/v1/feed", '{"recent_events": [{"type": "view"}]}', "recent_events[0].item_id"),
    ("/v1/feed", '{"recent_events": [{"item_id": "i1"}]}', "recent_events[0].type"),
    ("/v1/feed", '{"recent_events": [{"item_id": "i1", "type": "unspecified"}]}', "recent_events[0].type"),
    (
        "/v1/feed",
        '{"recent_events": [{"item_id": "i1", "type": "view", "occurred_at": "noon"}]}',
        "recent_events[0].occurred_at",
    ),
    (
        "/v1/feed",
        '{"recent_events": [{"item_id": "i1", "type": "view", "occurred_at": 1}]}',
        "recent_events[0].occurred_at",
    ),
    ("/v1/feed", '{"exclude_item_ids": ["i1", 2]}', "exclude_item_ids[1]"),
    ("/v1/events", "{}", "session_id"),
    ("/v1/events", '{"session_id": "s", "events": []}', "events"),
    ("/v1/events", '{"session_id": "s", "events": [{"item_id": "i1", "type": "view"}]}', "events[0].event_id"),
]


async def test_a_misshapen_body_is_400_and_names_the_field(http: httpx.AsyncClient) -> None:
    for path, body, field in MISSHAPEN:
        answer = await http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, fault(answer)[0]) == (400, field), (body, answer.text)


async def test_limits_are_those_of_grpc_word_for_word(app: FeedApp, http: httpx.AsyncClient) -> None:
    bodies: list[dict[str, Any]] = [
        {"page_size": 101},
        {"page_size": -1},
        {"session_id": "x" * 257},
        {"user_id": "a\nb"},
        {"surface": "über"},
        {"page_token": "not ours"},
        {"exclude_item_ids": ["i"] * 501},
    ]
    async with client(app) as wire:
        for body in bodies:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await wire.feed(**body)
            answer = await http.post("/v1/feed", json=body)
            assert answer.status_code == 400
            assert ": ".join(fault(answer)) == refused.value.details()


async def test_random_bodies_get_a_page_or_a_named_field(http: httpx.AsyncClient) -> None:
    rng = random.Random(11)
    names = ["session_id", "user_id", "surface", "category", "region", "tenant", "page_size", "page_token",
             "recent_events", "exclude_item_ids", "priority", "other"]  # fmt: skip

    def value(depth: int = 0) -> Any:
        leaves = [
            None,
            True,
            -1,
            0,
            7,
            2**40,
            0.5,
            "",
            "i1",
            "view",
            "prefetch",
            "\x00",
            "é" * 200,
            "2026-01-01T00:00:00Z",
        ]
        kind = rng.randrange(10 if depth < 3 else 7)
        if kind < 7:
            return rng.choice(leaves)
        if kind == 7:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        keys = ["item_id", "type", "event_id", "occurred_at", "response_id", "x"]
        return {key: value(depth + 1) for key in rng.sample(keys, rng.randrange(1, 5))}

    seen = set()
    for _ in range(600):
        body = {name: value() for name in rng.sample(names, rng.randrange(1, 4))}
        answer = await http.post("/v1/feed", json=body)
        seen.add(answer.status_code)
        if answer.status_code != 200:
            assert answer.status_code == 400, (body, answer.text)
            assert fault(answer)[0], body
    assert seen == {200, 400}


async def test_a_body_that_is_announced_too_large_is_413(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/feed", json={"session_id": "x" * 65_536})
    assert answer.status_code == 413
    assert fault(answer) == ("body", "is larger than 65536 bytes")


async def test_a_body_that_turns_out_too_large_is_413_before_it_has_ended(http: httpx.AsyncClient) -> None:
    async def endless() -> AsyncIterator[bytes]:
        yield b'{"session_id": "'
        for _ in range(40):
            yield b"x" * 4096

    answer = await http.post("/v1/feed", content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert fault(answer) == ("body", "is larger than 65536 bytes")


async def test_a_form_of_another_site_cannot_store_events(http: httpx.AsyncClient) -> None:
    """A browser sends text/plain across sites without asking; application/json it asks for, and is refused."""
    body = json.dumps({"session_id": "s", "events": [VIEW | {"event_id": "e"}]})
    assert (await http.post("/v1/events", content=body, headers={"Content-Type": "text/plain"})).status_code == 400
    asked = await http.options(
        "/v1/events", headers={"Origin": "http://evil.test", "Access-Control-Request-Method": "POST"}
    )
    assert asked.status_code == 405
    assert "access-control-allow-origin" not in asked.headers


async def test_the_callers_deadline_comes_in_a_header(http: httpx.AsyncClient) -> None:
    late = await http.post("/v1/feed", json={"recent_events": [VIEW]}, headers={"X-Request-Timeout-Ms": "0.01"})
    assert late.status_code == 200
    assert late.json()["provenance"]["reasons"] == ["no_time"]
    for wrong in ("0", "nan", "soon", "1e9"):
        answer = await http.post("/v1/feed", json={}, headers={"X-Request-Timeout-Ms": wrong})
        assert (answer.status_code, fault(answer)[0]) == (400, "X-Request-Timeout-Ms")


async def test_a_write_token_is_needed_to_store_events_and_for_nothing_else(tmp_path: Path, snapshots: Path) -> None:
    body = {"session_id": "s", "events": [VIEW | {"event_id": "e"}]}
    async with (
        open_app(settings_for(tmp_path, console={"write_token": "sésame"})) as app,
        http_client(app) as http,
    ):
        for header in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic c2VzYW1l"}):
            answer = await http.post("/v1/events", json=body, headers=header)
            assert (answer.status_code, fault(answer)[0]) == (401, "Authorization")
            assert answer.headers["www-authenticate"] == "Bearer"
        right = {b"Authorization": "Bearer sésame".encode()}
        assert (await http.post("/v1/events", json=body, headers=right)).status_code == 200
        assert (await http.post("/v1/feed", json={})).status_code == 200
        assert 'id="token"' in (await http.get("/")).text


async def test_events_that_cannot_be_stored_are_503_and_feeds_still_come(tmp_path: Path, snapshots: Path) -> None:
    settings = settings_for(tmp_path, state={"url": f"unix://{tmp_path}/nobody.sock"})
    async with open_app(settings) as app, http_client(app) as http:
        answer = await http.post("/v1/events", json={"session_id": "s", "events": [VIEW | {"event_id": "e"}]})
        assert answer.status_code == 503
        assert fault(answer)[1]
        page = (await http.post("/v1/feed", json={"session_id": "s"})).json()
        assert page["provenance"]["degraded"]
        assert "session_unavailable" in page["provenance"]["reasons"]


async def test_items_are_found_by_text_and_by_id(http: httpx.AsyncClient) -> None:
    found = (await http.get("/v1/items", params={"query": "ITEM 99", "limit": 3})).json()
    assert found["snapshot_id"] == "20260101T000000Z-00000007"
    assert [item["item_id"] for item in found["items"]] == ["i99", "i990", "i991"]
    assert found["items"][0] == {
        "item_id": "i99", "title": "Item 99", "category": "tea", "price": 10.0, "available": True
    }  # fmt: skip
    by_id = (await http.get("/v1/items", params=[("id", "i3"), ("id", "nope"), ("id", "i1")])).json()
    assert [(item["item_id"], item["available"]) for item in by_id["items"]] == [("i3", False), ("i1", True)]
    assert (await http.get("/v1/items", params={"query": "zzz"})).json()["items"] == []
    wrong = await http.get("/v1/items", params={"limit": 0})
    assert (wrong.status_code, fault(wrong)[0]) == (400, "limit")


async def test_a_path_that_is_not_there_is_an_error_of_the_one_shape(http: httpx.AsyncClient) -> None:
    assert fault(await http.get("/v1/nothing")) == ("", "Not Found")
    answer = await http.get("/v1/feed")
    assert (answer.status_code, fault(answer)[1]) == (405, "Method Not Allowed")
