"""A user's history on a real server: what it counts, that nothing counts twice, what it costs when damaged."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from cache.breaker import Breaker
from cache.redis_link import RedisLink, open_client
from indexer.contract.features import PURCHASE
from indexer.contract.purchases import Bought, UserPurchases, session_tag
from indexer.learn.histories import Histories
from indexer.learn.interactions import interactions
from services.domain import EventType, PastPurchase, PastPurchases, ShopEvent
from services.errors import StateUnavailable
from services.feed.event_stream import EventStream, Recorded
from services.feed.history import LIMIT_MS, pack, unpack
from services.feed.sessions import SessionStore
from services.feed.state_keys import StateKeys
from tests.feed.histories import DAY_MS, Visit, counted, visits
from tests.feed.state import NOW_MS, State, batch, purchase, state_at
from tests.servers import Server, client_of, link_to

T = TypeVar("T")


async def history(state: State, session: str = "next", user: str = "u") -> PastPurchases:
    known = await state.sessions.read("shop", session, user)
    assert known.history_fault == ""
    return known.history


async def test_a_purchase_is_history_for_the_next_session_and_not_for_its_own(server: Server) -> None:
    async with state_at(server.url) as state:
        await state.stream.record(batch(purchase(1, "tea", 0), purchase(2, "cup", 1), session="first"))
        assert await history(state, "first") == PastPurchases()
        seen = (PastPurchase("cup", 1, NOW_MS + 1, NOW_MS + 1), PastPurchase("tea", 1, NOW_MS, NOW_MS))
        assert await history(state) == PastPurchases(seen, 1)

        await state.stream.record(batch(purchase(3, "tea", 9), session="second"))
        assert await history(state, "second") == PastPurchases(seen, 1), "as it was before the second session"
        again = PastPurchase("tea", 2, NOW_MS, NOW_MS + 9)
        assert await history(state) == PastPurchases((again, seen[0]), 2)
        assert await history(state, "") == PastPurchases((again, seen[0]), 2)


async def test_only_purchases_of_somebody_known_are_counted_and_tenants_are_apart(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        viewed = ShopEvent("e", "tea", EventType.CART, NOW_MS)
        await state.stream.record(batch(viewed, session="first"))
        await state.stream.record(batch(purchase(1, "tea", 0), session="first", user=""))
        assert await client.keys("*history*") == []

        await state.stream.record(batch(purchase(1, "tea", 0), session="first", tenant="other"))
        assert await history(state) == PastPurchases()


async def test_without_histories_nothing_is_written(server: Server) -> None:
    async with state_at(server.url, history_items=0) as state, client_of(server.url) as client:
        assert await state.stream.record(batch(purchase(1, "tea", 0))) == Recorded(stored=1, repeated=0)
        assert [*await client.keys("*history*"), *await client.keys("*bought*")] == []


async def test_everything_of_a_history_has_a_lifetime_and_the_users_id_stands_nowhere(server: Server) -> None:
    async with state_at(server.url, lifetime_s=50) as state, client_of(server.url) as client:
        await state.stream.record(batch(purchase(1, "tea", 0), user="jane@example.org"))

        keys = cast("list[bytes]", [*await client.keys("*history*"), *await client.keys("*bought*")])
        assert len(keys) == 2
        assert all([40_000 < await client.pttl(key) <= 50_000 for key in keys])
        assert not any(b"jane" in text for text in (*keys, cast("bytes", await client.get(keys[0]))))


@pytest.mark.parametrize("seed", range(4))
async def test_what_is_recorded_in_order_of_time_is_what_training_counts(server: Server, seed: int) -> None:
    log = visits(seed)
    events = [(visit, event) for visit in log for call in visit.calls for event in call.events]
    sessions = {visit.session: number for number, visit in enumerate(log)}
    users = sorted({visit.user for visit in log})
    trained = Histories(
        interactions(
            np.array([int(event.item_id.removeprefix("item-")) for _, event in events], np.int32),
            np.array([event.type for _, event in events], np.uint8),
            np.array([users.index(visit.user) for visit, _ in events], np.int64),
            np.array([sessions[visit.session] for visit, _ in events], np.int64),
            np.array([event.occurred_at_ms for _, event in events], "datetime64[ms]"),
            n_items=12,
            seed=1,
        )
    )
    assert PURCHASE == EventType.PURCHASE
    async with state_at(server.url) as state:
        for number, visit in enumerate(log):
            begun = min(event.occurred_at_ms for call in visit.calls for event in call.events)
            expected = trained.at(users.index(visit.user), number, begun / DAY_MS)
            for call in (None, *visit.calls):
                if call is not None:
                    await state.stream.record(call)
                found = await history(state, visit.session, visit.user)
                assert found.sessions == expected.sessions
                assert [item.item_id for item in found.items] == [f"item-{row}" for row in expected.rows]
                assert [item.times for item in found.items] == expected.times.tolist()
                assert [item.first_ms / DAY_MS for item in found.items] == pytest.approx(expected.first, abs=1e-9)
                assert [item.last_ms / DAY_MS for item in found.items] == pytest.approx(expected.last, abs=1e-9)


class Interrupted(RedisLink):
    """A link on which a script call may fail before the server sees it, or after it has done all."""

    def __init__(self, client: Redis, random: Random) -> None:
        super().__init__(client, Breaker(failures_to_open=10**9), timeout_s=5)
        self._random = random

    async def call(self, operation: Callable[[Redis], Awaitable[T]], *, timeout_s: float | None = None) -> T:
        return await super().call(lambda client: operation(cast("Redis", Failing(client, self._random))))


class Failing:
    """A client whose scripts fail one time in three."""

    def __init__(self, client: Redis, random: Random) -> None:
        self._client = client
        self._random = random

    async def evalsha(self, *arguments: Any) -> object:
        if self._random.random() < 1 / 6:
            raise RedisConnectionError("before the server saw it")
        answer = await cast("Awaitable[object]", self._client.evalsha(*arguments))
        if self._random.random() < 1 / 6:
            raise RedisConnectionError("the answer is lost")
        return answer

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)


@pytest.mark.parametrize("seed", range(4))
async def test_a_call_that_is_sent_again_after_any_failure_ends_with_everything_counted_once(
    server: Server, seed: int
) -> None:
    random = Random(seed)
    log = visits(seed, users=2, sessions=20)
    link = Interrupted(open_client(server.url), random)
    keys = StateKeys()
    sessions = SessionStore(link, keys)
    stream = EventStream(link, keys, sessions, timeout_s=5)
    failures = 0
    for visit in log:
        for call in visit.calls:
            stored = False
            while not stored or random.random() < 0.2:
                try:
                    await stream.record(call)
                    stored = True
                except StateUnavailable:
                    failures += 1
    assert failures > 10
    for user in ("user-0", "user-1"):
        assert (await sessions.read("shop", "", user)).history == counted(log, user)
    await link.close()


async def test_purchases_that_are_told_late_keep_first_and_last(server: Server) -> None:
    async with state_at(server.url) as state:
        for number, at in enumerate((50, 10, 90, 30)):
            await state.stream.record(batch(purchase(number, "tea", at), session=f"s{number}"))
            await state.stream.record(batch(purchase(number, f"item-{at}", at), session=f"t{number}"))

        found = await history(state)
        assert found.items[0] == PastPurchase("tea", 4, NOW_MS + 10, NOW_MS + 90)
        assert [item.item_id for item in found.items[1:]] == ["item-90", "item-50", "item-30", "item-10"]
        assert found.sessions == 8
        without_the_last = (await history(state, "s3")).items[0]
        assert without_the_last == PastPurchase("tea", 3, NOW_MS + 10, NOW_MS + 90)


async def test_sessions_by_turns_count_at_each_turn(server: Server) -> None:
    async with state_at(server.url) as state:
        for number, session in enumerate("ABA"):
            await state.stream.record(batch(purchase(number, "tea", number), session=session))

        assert await history(state) == PastPurchases((PastPurchase("tea", 3, NOW_MS, NOW_MS + 2),), 3)


async def test_the_latest_items_are_kept_and_a_smaller_limit_holds_at_once(server: Server) -> None:
    async with state_at(server.url, history_items=5) as state:
        for number in range(9):
            await state.stream.record(batch(purchase(number, f"item-{number}", number), session=f"s{number}"))

        found = await history(state)
        assert [item.item_id for item in found.items] == [f"item-{number}" for number in (8, 7, 6, 5, 4)]
        assert found.sessions == 9, "sessions are counted whole"
        less = SessionStore(state.link, state.keys, history_items=2)
        assert len((await less.read("shop", "next", "u")).history.items) == 2


@pytest.mark.parametrize(
    "at", [0, -1, 946_684_800_000, 1_999_999_999_999, 9_999_999_999_999, LIMIT_MS - 1, LIMIT_MS, -LIMIT_MS]
)
async def test_moments_and_counts_at_the_limits_of_json_numbers_survive(server: Server, at: int) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        many = Bought(["x"], [at], [2**31 - 1], [at], [at])
        packed = pack(UserPurchases("shop", "u", many, ["tea"], many))
        await client.set(state.keys.history("shop", "u"), packed)
        await state.stream.record(batch(ShopEvent("e", "tea", EventType.PURCHASE, at), session="s"))

        assert await history(state) == PastPurchases((PastPurchase("tea", 2**31 + 1, at, at),), 2**31 + 1)


async def test_moments_beyond_what_lua_can_write_are_stored_as_the_last_that_it_can(server: Server) -> None:
    async with state_at(server.url) as state:
        for sign in (-1, 1):
            one = ShopEvent(f"e{sign}", "tea", EventType.PURCHASE, sign * 2**60)
            await state.stream.record(batch(one, session=f"s{sign}"))

        assert (await history(state)).items == (PastPurchase("tea", 2, -LIMIT_MS, LIMIT_MS),)


@pytest.mark.parametrize(
    "item", ['"', "\\", "a/b", "{7}", "ключ", "\x00\x1f\x7f", "\ud800", "🫖", " ", "x" * 256, "1e5"]
)
async def test_an_item_may_have_any_name(server: Server, item: str) -> None:
    async with state_at(server.url) as state:
        for number in range(2):
            await state.stream.record(batch(purchase(number, item, number), session=f"s{number}"))

        assert (await history(state)).items == (PastPurchase(item, 2, NOW_MS, NOW_MS + 1),)


WHOLE: list[Any] = [1, ["t", 5, 0, 0, 0], ["tea"], ["t"], [5], [0], [0], [0]]
DAMAGED = [
    "not json",
    "7",
    "{}",
    "[]",
    "[" * 100_000,
    json.dumps([2, *WHOLE[1:]]),
    json.dumps(WHOLE[:-1]),
    json.dumps([1, ["t", "5", 0, 0, 0], *WHOLE[2:]]),
    json.dumps([1, [5, 5, 0, 0, 0], *WHOLE[2:]]),
    json.dumps([1, ["t"], *WHOLE[2:]]),
    json.dumps([1, None, *WHOLE[2:]]),
    json.dumps([*WHOLE[:2], [7], *WHOLE[3:]]),
    json.dumps([*WHOLE[:2], "tea", *WHOLE[3:]]),
    json.dumps([*WHOLE[:3], ["t", "t"], *WHOLE[4:]]),
    json.dumps([*WHOLE[:4], [None], *WHOLE[5:]]),
    json.dumps([*WHOLE[:4], [], *WHOLE[5:]]),
    json.dumps([*WHOLE[:4], [10**40], *WHOLE[5:]]),
    json.dumps([*WHOLE[:5], [2**50], *WHOLE[6:]]),
    json.dumps([*WHOLE[:6], [-(10**300)], *WHOLE[7:]]),
    json.dumps([1, ["t", 5, 2**70, 0, 0], *WHOLE[2:]]),
    json.dumps([*WHOLE[:7], {"0": 0}]),
]


@pytest.mark.parametrize("damaged", DAMAGED, ids=range(len(DAMAGED)))
async def test_what_is_no_history_costs_the_history_until_the_next_purchase_and_is_said(
    server: Server, damaged: str
) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await client.set(state.keys.history("shop", "u"), damaged)
        known = await state.sessions.read("shop", "s", "u")
        assert (known.history, known.history_fault) == (PastPurchases(), "history_corrupt")

        with capture_logs() as logs:
            assert await state.stream.record(batch(purchase(1, "cup", 0))) == Recorded(stored=1, repeated=0)

        assert [entry["event"] for entry in logs] == ["history replaced"]
        assert [item.item_id for item in (await history(state)).items] == ["cup"]


def test_a_whole_history_is_read() -> None:
    assert unpack(json.dumps(WHOLE).encode(), "", 9) == PastPurchases((PastPurchase("tea", 1, 5, 5),), 1)
    assert unpack(json.dumps(WHOLE).encode(), "t", 9) == PastPurchases()


async def test_a_history_key_of_another_type_refuses_purchases_and_stays(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        key = state.keys.history("shop", "u")
        await client.rpush(key, "x")

        with pytest.raises(StateUnavailable, match=r"^wrong_key_type$"):
            await state.stream.record(batch(purchase(1, "tea", 0)))

        assert await cast("Awaitable[list[bytes]]", client.lrange(key, 0, -1)) == [b"x"]
        await client.delete(key)
        assert await state.stream.record(batch(purchase(1, "tea", 0))) == Recorded(stored=0, repeated=1)
        assert len((await history(state)).items) == 1


async def test_purchases_cost_one_more_command_and_scripts_that_were_lost_are_loaded_again(server: Server) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await state.stream.record(batch(purchase(1, "tea", 0)))
        await client.script_flush()
        await state.stream.record(batch(purchase(2, "tea", 1)))
        await client.config_resetstat()

        await state.stream.record(batch(*(purchase(number, f"item-{number}", number) for number in range(3, 100))))

        stats = await client.info("commandstats")
        assert stats["cmdstat_evalsha"]["calls"] == 2
        assert "cmdstat_eval" not in stats
        assert len((await history(state)).items) == 98


async def test_a_server_without_memory_counts_nothing_and_everything_later(own_server: Server) -> None:
    async with link_to(own_server.url) as link, client_of(own_server.url) as client:
        keys = StateKeys()
        sessions = SessionStore(link, keys)
        stream = EventStream(link, keys, sessions, timeout_s=5)
        await client.config_set("maxmemory", "1")
        bought = batch(purchase(1, "tea", 0))
        with pytest.raises(StateUnavailable, match=r"^server_error$"):
            await stream.record(bought)

        await client.config_set("maxmemory", "0")
        assert await stream.record(bought) == Recorded(stored=1, repeated=0)
        assert len((await sessions.read("shop", "", "u")).history.items) == 1


def test_tags_are_short_and_apart() -> None:
    assert {len(session_tag(text)) for text in ("", "s", "\ud800", "x" * 256)} == {8}
    assert len({session_tag(f"s{number}") for number in range(1000)}) == 1000


def test_logs_are_of_every_kind() -> None:
    """What the properties above are tried on: items bought twice in a session and again, and sessions without any."""
    log = visits(0)
    bought = [
        event for visit in log for call in visit.calls for event in call.events if event.type is EventType.PURCHASE
    ]
    assert len(bought) > sum(len(visit.bought) for visit in log)
    assert any(item.times > 3 for item in counted(log, "user-0").items)
    assert any(not visit.bought for visit in log)
    assert isinstance(log[0], Visit)
