from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import cast

import pytest

from services.domain import EventType
from services.errors import StateUnavailable
from services.feed.event_stream import EventStream, Recorded, check_state_server
from tests.feed.state import State, batch, event, state_at
from tests.servers import Server, client_of, free_port, silent_server


async def streamed(server: Server, state: State) -> list[str]:
    """The event ids in all streams."""
    ids = []
    async with client_of(server.url) as client:
        for stream in state.keys.streams():
            entries = await cast("Awaitable[list[tuple[bytes, dict[bytes, bytes]]]]", client.xrange(stream))
            ids += [json.loads(fields[b"e"])[1] for _, fields in entries]
    return ids


async def test_a_repeated_event_id_counts_once(server: Server) -> None:
    async with state_at(server.url) as state:
        assert await state.stream.record(batch(event(1), event(2))) == Recorded(stored=2, repeated=0)
        assert await state.stream.record(batch(event(2), event(3))) == Recorded(stored=1, repeated=1)
        assert await state.stream.record(batch(event(1), event(2), event(3))) == Recorded(stored=0, repeated=3)

        assert await streamed(server, state) == ["e1", "e2", "e3"]
        assert len((await state.sessions.read("shop", "s", "")).events) == 3


async def test_an_event_id_twice_in_one_call_counts_once_and_the_first_stands(server: Server) -> None:
    async with state_at(server.url) as state:
        twice = batch(event(1), event(2), event(9, event_id="e1"))

        assert await state.stream.record(twice) == Recorded(stored=2, repeated=1)

        known = await state.sessions.read("shop", "s", "")
        assert [one.item_id for one in known.events] == ["item-001", "item-002"]


async def test_many_who_send_the_same_events_at_once_store_them_once(server: Server) -> None:
    async with state_at(server.url) as state:
        same = batch(*(event(number) for number in range(20)))

        answers = await asyncio.gather(*(state.stream.record(same) for _ in range(30)))

        assert sum(answer.stored for answer in answers) == 20
        assert len(await streamed(server, state)) == 20


async def test_the_same_event_id_of_another_shop_is_another_event(server: Server) -> None:
    async with state_at(server.url) as state:
        for tenant in ("a", "b"):
            assert (await state.stream.record(batch(event(1), tenant=tenant))).stored == 1


async def test_impressions_are_streamed_and_are_no_part_of_the_session(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        only = batch(event(1, EventType.IMPRESSION))
        assert (await state.stream.record(only)).stored == 1
        assert await client.exists(state.keys.session("shop", "s")) == 0

        await state.stream.record(batch(event(2, EventType.IMPRESSION), event(3, EventType.CART)))

        assert [one.event_id for one in (await state.sessions.read("shop", "s", "")).events] == ["e3"]
        assert await streamed(server, state) == ["e1", "e2", "e3"]


async def test_everything_but_the_stream_has_a_lifetime_and_stands_below_the_prefix(server: Server) -> None:
    async with state_at(server.url, lifetime_s=50, prefix="shop-1:") as state, client_of(server.url) as client:
        await state.stream.record(batch(event(1), event(2)))

        lifetimes = {key: await client.pttl(key) for key in cast("list[bytes]", await client.keys("*"))}

        stream = state.keys.stream_of("shop", "s").encode()
        assert lifetimes.pop(stream) == -1
        assert len(lifetimes) == 3
        assert all(key.startswith(b"shop-1:{") for key in lifetimes)
        assert all(40_000 < lifetime <= 50_000 for lifetime in lifetimes.values())


async def test_recording_is_one_command_and_the_script_is_loaded_again_when_it_was_lost(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await state.stream.record(batch(event(1)))
        await client.script_flush()
        assert (await state.stream.record(batch(event(2)))).stored == 1
        await client.config_resetstat()

        await state.stream.record(batch(*(event(number) for number in range(3, 100))))

        stats = await client.info("commandstats")
        assert stats["cmdstat_evalsha"]["calls"] == 1
        assert "cmdstat_eval" not in stats


async def test_a_full_stream_refuses_the_whole_call_and_still_knows_what_it_has(server: Server) -> None:
    async with state_at(server.url, max_stream_length=16 * 5) as state:
        first = batch(*(event(number) for number in range(4)))
        await state.stream.record(first)

        with pytest.raises(StateUnavailable, match=r"^event_stream_full$"):
            await state.stream.record(batch(event(4), event(5)))

        assert await streamed(server, state) == ["e0", "e1", "e2", "e3"]
        assert len((await state.sessions.read("shop", "s", "")).events) == 4
        assert await state.stream.record(first) == Recorded(stored=0, repeated=4)
        assert (await state.stream.record(batch(event(4)))).stored == 1


@pytest.mark.parametrize("broken", ["session", "stream"])
async def test_a_key_of_another_type_stores_nothing(server: Server, broken: str) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        key = state.keys.session("shop", "s") if broken == "session" else state.keys.stream_of("shop", "s").encode()
        await client.set(key, "x")

        with pytest.raises(StateUnavailable, match=r"^wrong_key_type$"):
            await state.stream.record(batch(event(1)))

        assert await client.keys("*") == [key]


async def test_a_server_without_memory_stores_nothing(own_server: Server) -> None:
    async with state_at(own_server.url) as state, client_of(own_server.url) as client:
        await state.stream.record(batch(event(1)))
        await client.config_set("maxmemory", "1")

        with pytest.raises(StateUnavailable, match=r"^server_error$"):
            await state.stream.record(batch(event(2), event(3)))

        await client.config_set("maxmemory", "0")
        assert await streamed(own_server, state) == ["e1"]
        assert await state.stream.record(batch(event(2), event(3))) == Recorded(stored=2, repeated=0)


async def test_a_user_of_one_prefix_may_do_all_that_is_needed(server: Server) -> None:
    async with client_of(server.url) as admin:
        await admin.execute_command(  # type: ignore[no-untyped-call]
            "ACL", "SETUSER", "feedline", "on", ">pw", "resetkeys", "~feedline:*", "+@all", "-@dangerous"
        )
    async with state_at(server.tcp_url.replace("://", "://feedline:pw@")) as state:
        assert (await state.stream.record(batch(event(1)))).stored == 1
        assert len((await state.sessions.read("shop", "s", "")).events) == 1


async def test_a_lost_server_is_unavailable_with_its_reason(own_server: Server) -> None:
    async with state_at(own_server.url) as state:
        await state.stream.record(batch(event(1)))
        own_server.kill()

        with pytest.raises(StateUnavailable, match=r"^refused$"):
            await state.stream.record(batch(event(2)))


async def test_a_silent_server_is_unavailable_after_the_time_out() -> None:
    async with silent_server() as url, state_at(url) as state:
        stream = EventStream(state.link, state.keys, state.sessions, timeout_s=0.05)

        with pytest.raises(StateUnavailable, match=r"^timeout$"):
            await stream.record(batch(event(1)))


async def test_what_endangers_recorded_events_is_said(server: Server) -> None:
    async with client_of(server.url) as client:
        assert [warning.split(":")[1] for warning in await check_state_server(client)] == [" appendonly is off"]

        await client.config_set("maxmemory", "100mb")
        await client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            warnings = await check_state_server(client)
        finally:
            await client.config_set("maxmemory-policy", "noeviction")
            await client.config_set("maxmemory", "0")
        assert "maxmemory-policy is allkeys-lru" in warnings[1]

        await client.execute_command(  # type: ignore[no-untyped-call]
            "ACL", "SETUSER", "blind", "on", ">pw", "~feedline:*", "+@all", "-@dangerous"
        )
    async with client_of(server.tcp_url.replace("://", "://blind:pw@")) as client:
        assert "could not be checked" in (await check_state_server(client))[0]


async def test_impossible_limits_are_refused() -> None:
    async with state_at(f"redis://127.0.0.1:{free_port()}") as state:
        with pytest.raises(ValueError, match="max_stream_length"):
            EventStream(state.link, state.keys, state.sessions, max_stream_length=15)
