from __future__ import annotations

import asyncio
import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.domain import EventType, Known, ShopEvent
from services.errors import StateUnavailable
from services.feed.event_stream import EventStream
from services.feed.sessions import SessionStore, pack_event, unpack_event
from services.feed.state_keys import SHARDS, StateKeys
from tests.feed.state import batch, event, purchase, state_at
from tests.servers import Server, _awaited, client_of, free_port, link_to

events = st.builds(ShopEvent, st.text(), st.text(), st.sampled_from(EventType), st.integers(-(2**62), 2**62), st.text())


@given(events)
def test_an_event_is_unpacked_as_it_was_packed(one: ShopEvent) -> None:
    assert unpack_event(pack_event(one).encode()) == one


async def test_an_unknown_session_is_empty(server: Server) -> None:
    async with state_at(server.url) as state:
        assert await state.sessions.read("shop", "nobody", "nobody") == Known()


async def test_a_recorded_event_is_in_the_session_at_once_newest_last(server: Server) -> None:
    async with state_at(server.url) as state:
        recorded = [event(number, response_id="r") for number in range(3)]
        await state.stream.record(batch(*recorded[:2]))
        await state.stream.record(batch(recorded[2]))

        assert (await state.sessions.read("shop", "s", "")).events == tuple(recorded)


async def test_only_the_last_events_are_kept(server: Server) -> None:
    async with state_at(server.url, max_events=5) as state, client_of(server.url) as client:
        for start in range(0, 12, 4):
            await state.stream.record(batch(*(event(number) for number in range(start, start + 4))))

        known = await state.sessions.read("shop", "s", "")
        assert [one.event_id for one in known.events] == ["e7", "e8", "e9", "e10", "e11"]
        assert await client.llen(state.keys.session("shop", "s").decode()) == 5


async def test_a_smaller_limit_holds_for_sessions_that_were_written_with_a_larger_one(server: Server) -> None:
    async with state_at(server.url) as state:
        await state.stream.record(batch(*(event(number) for number in range(10))))

        recent = await SessionStore(state.link, state.keys, max_events=3).read("shop", "s", "")

        assert [one.event_id for one in recent.events] == ["e7", "e8", "e9"]


async def test_sessions_of_tenants_are_apart(server: Server) -> None:
    async with state_at(server.url) as state:
        await state.stream.record(batch(event(1), tenant="a", session="b:c"))
        await state.stream.record(batch(event(2), tenant="a:b", session="c"))

        assert [one.event_id for one in (await state.sessions.read("a", "b:c", "")).events] == ["e1"]
        assert [one.event_id for one in (await state.sessions.read("a:b", "c", "")).events] == ["e2"]


@pytest.mark.parametrize("session", ["{7}", "ключ", "a b\nc", "\ud800", "x" * 256])
async def test_a_session_may_have_any_name(server: Server, session: str) -> None:
    async with state_at(server.url) as state:
        await state.stream.record(batch(event(1), session=session))

        assert len((await state.sessions.read("shop", session, "")).events) == 1


async def test_reading_session_and_history_is_one_round_trip(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await state.stream.record(batch(event(1, EventType.PURCHASE)))
        await state.sessions.read("shop", "s", "u")
        await client.config_resetstat()
        before = (await client.info("stats"))["total_reads_processed"]

        await state.sessions.read("shop", "s", "u")

        asked_and_read = (await client.info("stats"))["total_reads_processed"] - before
        assert asked_and_read == 2, "the question for these figures, and one more"
        stats = await client.info("commandstats")
        calls = {name: seen["calls"] for name, seen in stats.items() if "config" not in name and "info" not in name}
        assert calls == {"cmdstat_lrange": 1, "cmdstat_get": 1}


@pytest.mark.parametrize(
    ("session", "user", "history_items", "calls"),
    [
        ("", "", 256, set()),
        ("s", "", 256, {"cmdstat_lrange"}),
        ("", "u", 256, {"cmdstat_get"}),
        ("s", "u", 0, {"cmdstat_lrange"}),
        ("", "u", 0, set()),
    ],
)
async def test_only_what_is_asked_for_is_read(
    server: Server, session: str, user: str, history_items: int, calls: set[str]
) -> None:
    async with state_at(server.url, history_items=history_items) as state, client_of(server.url) as client:
        await client.config_resetstat()

        assert await state.sessions.read("shop", session, user) == Known()

        assert {name for name in await client.info("commandstats") if "config" not in name} == calls


async def test_a_lost_server_is_unavailable_with_its_reason() -> None:
    async with state_at(f"redis://127.0.0.1:{free_port()}") as state:
        for reason in ("refused", "breaker_open"):
            with pytest.raises(StateUnavailable, match=f"^{reason}$"):
                await state.sessions.read("shop", "s", "")


@pytest.mark.parametrize("foreign", ["not json", "[]", '[2,"e","i",2,1,""]', '[1,"e","i",9,1,""]', "{}", "7"])
async def test_what_is_not_an_event_makes_the_session_unavailable(server: Server, foreign: str) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await client.execute_command("RPUSH", state.keys.session("shop", "s"), foreign)  # type: ignore[no-untyped-call]

        with pytest.raises(StateUnavailable, match=r"^session_corrupt$"):
            await state.sessions.read("shop", "s", "")


async def test_a_key_of_another_type_makes_the_session_unavailable(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await client.set(state.keys.session("shop", "s"), "x")

        with pytest.raises(StateUnavailable, match=r"^server_error$"):
            await state.sessions.read("shop", "s", "")


async def test_a_damaged_session_leaves_the_history_and_the_other_way_round(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await state.stream.record(batch(event(1, EventType.PURCHASE), session="before"))
        session, history = state.keys.session("shop", "s"), state.keys.history("shop", "u")
        await state.stream.record(batch(event(2)))
        both = await state.sessions.read("shop", "s", "u")

        for value, fault in (("{}", "history_corrupt"), (None, "server_error")):
            packed = await client.get(history)
            await client.delete(history)
            await _awaited(client.rpush(history, "x") if value is None else client.set(history, value))
            assert await state.sessions.read("shop", "s", "u") == Known(both.events, history_fault=fault)
            with pytest.raises(StateUnavailable, match=f"^{fault}$"):
                await state.sessions.read("shop", "", "u")
            assert packed is not None
            await client.set(history, packed)

        await client.execute_command("RPUSH", session, "x")  # type: ignore[no-untyped-call]
        assert await state.sessions.read("shop", "s", "u") == Known((), both.history, session_fault="session_corrupt")
        await client.set(session, "x")
        assert await state.sessions.read("shop", "s", "u") == Known((), both.history, session_fault="server_error")
        await client.set(history, "x")
        with pytest.raises(StateUnavailable, match=r"^server_error$"):
            await state.sessions.read("shop", "s", "u")


async def test_whoever_gives_up_leaves_no_answer_to_others(server: Server) -> None:
    random = Random(1)
    async with link_to(server.url, max_connections=4) as link:
        keys = StateKeys()
        sessions = SessionStore(link, keys)
        stream = EventStream(link, keys, sessions, timeout_s=5)
        for user in range(8):
            await stream.record(batch(purchase(user, f"item-{user}", 0), session="before", user=f"u{user}"))

        async def read(user: int) -> bool:
            try:
                async with asyncio.timeout(random.choice((0, 0.0005, 0.002, 5))):
                    known = await sessions.read("shop", "now", f"u{user}")
            except (StateUnavailable, TimeoutError):
                return False
            assert [item.item_id for item in known.history.items] == [f"item-{user}"]
            return True

        for _ in range(60):
            await asyncio.gather(*(read(random.randrange(8)) for _ in range(6)))
        assert all([await read_at_last(sessions, user) for user in range(8)])


async def read_at_last(sessions: SessionStore, user: int) -> bool:
    return [item.item_id for item in (await sessions.read("shop", "now", f"u{user}")).history.items] == [f"item-{user}"]


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


def test_all_keys_of_a_user_share_a_tag_and_none_holds_the_users_id() -> None:
    keys = StateKeys()
    for number in range(100):
        user = f"user-{number}"
        made = [keys.history("t", user), keys.bought("t", user, "s", "e"), keys.bought("t", user, "s2", "e2")]
        assert len({key[: key.index("}")] for key in made}) == 1
        assert not any(user in key for key in made)
    assert keys.history("a", "bc") != keys.history("ab", "c")


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
        with pytest.raises(ValueError, match="history_items"):
            SessionStore(link, StateKeys(), history_items=-1)


def test_a_packed_event_is_compact() -> None:
    assert len(pack_event(event(1))) < 60
    assert json.loads(pack_event(event(1)))[0] == 1
