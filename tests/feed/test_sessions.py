from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain import EventType, ShopEvent
from services.errors import StateUnavailable
from services.feed.sessions import SessionStore, pack_event, unpack_event
from services.feed.state_keys import SHARDS, StateKeys
from tests.feed.state import batch, event, state_at
from tests.servers import Server, client_of, free_port, link_to

events = st.builds(ShopEvent, st.text(), st.text(), st.sampled_from(EventType), st.integers(-(2**62), 2**62), st.text())


@given(events)
def test_an_event_is_unpacked_as_it_was_packed(one: ShopEvent) -> None:
    assert unpack_event(pack_event(one).encode()) == one


async def test_an_unknown_session_is_empty(server: Server) -> None:
    async with state_at(server.url) as state:
        assert await state.sessions.read("shop", "nobody") == ()


async def test_a_recorded_event_is_in_the_session_at_once_newest_last(server: Server) -> None:
    async with state_at(server.url) as state:
        recorded = [event(number, response_id="r") for number in range(3)]
        await state.stream.record(batch(*recorded[:2]))
        await state.stream.record(batch(recorded[2]))

        assert await state.sessions.read("shop", "s") == tuple(recorded)


async def test_only_the_last_events_are_kept(server: Server) -> None:
    async with state_at(server.url, max_events=5) as state, client_of(server.url) as client:
        for start in range(0, 12, 4):
            await state.stream.record(batch(*(event(number) for number in range(start, start + 4))))

        assert [one.event_id for one in await state.sessions.read("shop", "s")] == ["e7", "e8", "e9", "e10", "e11"]
        assert await client.llen(state.keys.session("shop", "s").decode()) == 5


async def test_a_smaller_limit_holds_for_sessions_that_were_written_with_a_larger_one(server: Server) -> None:
    async with state_at(server.url) as state:
        await state.stream.record(batch(*(event(number) for number in range(10))))

        recent = await SessionStore(state.link, state.keys, max_events=3).read("shop", "s")

        assert [one.event_id for one in recent] == ["e7", "e8", "e9"]


async def test_sessions_of_tenants_are_apart(server: Server) -> None:
    async with state_at(server.url) as state:
        await state.stream.record(batch(event(1), tenant="a", session="b:c"))
        await state.stream.record(batch(event(2), tenant="a:b", session="c"))

        assert [one.event_id for one in await state.sessions.read("a", "b:c")] == ["e1"]
        assert [one.event_id for one in await state.sessions.read("a:b", "c")] == ["e2"]


@pytest.mark.parametrize("session", ["{7}", "ключ", "a b\nc", "\ud800", "x" * 256])
async def test_a_session_may_have_any_name(server: Server, session: str) -> None:
    async with state_at(server.url) as state:
        await state.stream.record(batch(event(1), session=session))

        assert len(await state.sessions.read("shop", session)) == 1


async def test_reading_is_one_command(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await state.stream.record(batch(event(1)))
        await state.sessions.read("shop", "s")
        await client.config_resetstat()

        await state.sessions.read("shop", "s")

        stats = await client.info("commandstats")
        calls = {name: seen["calls"] for name, seen in stats.items() if name != "cmdstat_config|resetstat"}
        assert calls == {"cmdstat_lrange": 1}


async def test_a_lost_server_is_unavailable_with_its_reason() -> None:
    async with state_at(f"redis://127.0.0.1:{free_port()}") as state:
        for reason in ("refused", "breaker_open"):
            with pytest.raises(StateUnavailable, match=f"^{reason}$"):
                await state.sessions.read("shop", "s")


@pytest.mark.parametrize("foreign", ["not json", "[]", '[2,"e","i",2,1,""]', '[1,"e","i",9,1,""]', "{}", "7"])
async def test_what_is_not_an_event_makes_the_session_unavailable(server: Server, foreign: str) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await client.execute_command("RPUSH", state.keys.session("shop", "s"), foreign)  # type: ignore[no-untyped-call]

        with pytest.raises(StateUnavailable, match=r"^session_corrupt$"):
            await state.sessions.read("shop", "s")


async def test_a_key_of_another_type_makes_the_session_unavailable(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await client.set(state.keys.session("shop", "s"), "x")

        with pytest.raises(StateUnavailable, match=r"^server_error$"):
            await state.sessions.read("shop", "s")


def test_all_keys_of_a_session_share_a_tag_and_a_prefix_and_all_shards_are_used() -> None:
    keys = StateKeys("shop-1:")
    tags = set()
    for number in range(500):
        session = f"s{number}"
        made = [keys.session("t", session).decode(), keys.event("t", session, "e"), keys.stream_of("t", session)]
        assert all(key.startswith("shop-1:{") for key in made)
        assert len({key[: key.index("}")] for key in made}) == 1
        tags.add(made[0][: made[0].index("}") + 1])
    assert len(tags) == SHARDS
    assert {f"{tag}:events" for tag in tags} == set(keys.streams())


def test_event_ids_are_apart_by_tenant_and_session() -> None:
    keys = StateKeys()
    assert len({keys.event("a", "b", "c"), keys.event("a", "bc", ""), keys.event("ab", "", "c")}) == 3


def test_a_prefix_with_braces_is_refused() -> None:
    with pytest.raises(ValueError, match="prefix: expected no braces"):
        StateKeys("{x}")


async def test_impossible_limits_are_refused() -> None:
    async with link_to("redis://127.0.0.1") as link:
        with pytest.raises(ValueError, match="max_events"):
            SessionStore(link, StateKeys(), max_events=0)


def test_a_packed_event_is_compact() -> None:
    assert len(pack_event(event(1))) < 60
    assert json.loads(pack_event(event(1)))[0] == 1
