from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from urllib.parse import quote

import pytest
from redis.asyncio import Redis

from cache.breaker import Breaker, BreakerState
from cache.redis_link import RedisLink, open_client
from cache.redis_tier import RedisTier
from cache.tier import TierUnavailable, Unavailability
from tests.clock import ManualClock
from tests.servers import (
    Server,
    babbling_server,
    client_of,
    free_port,
    link_to,
    silent_server,
    tls_front,
)


async def ping(client: Redis) -> bool:
    return await client.ping()


async def failure_of(call: Awaitable[object]) -> Unavailability:
    with pytest.raises(TierUnavailable) as failure:
        await call
    return failure.value.reason


async def test_a_value_comes_back_until_its_lifetime_is_over(server: Server) -> None:
    async with link_to(server.url) as link, client_of(server.url) as client:
        tier = RedisTier(link, prefix="feedline:cache:")
        value = bytes(range(256))
        assert await tier.get(b"k\x00\xff") is None

        await tier.set(b"k\x00\xff", value, 12.3451)

        assert await tier.get(b"k\x00\xff") == value
        assert 12_000 < await client.pttl(b"feedline:cache:k\x00\xff") <= 12_346


async def test_no_more_than_the_limit_is_read(server: Server) -> None:
    async with link_to(server.url) as link:
        await RedisTier(link).set(b"k", bytes(5000), 10)

        assert await RedisTier(link, max_value_bytes=100).get(b"k") == bytes(101)


async def test_tcp_with_a_user_of_one_prefix_and_a_password(server: Server) -> None:
    password = "p@ss:w/rd#?%"
    async with client_of(server.url) as admin:
        await admin.execute_command(  # type: ignore[no-untyped-call]
            "ACL", "SETUSER", "shop@eu:1", "on", f">{password}", "resetkeys", "~feedline:*", "+@all", "-@dangerous"
        )
    login = f"{quote('shop@eu:1')}:{quote(password, safe='')}@"
    async with link_to(server.tcp_url.replace("://", f"://{login}")) as link:
        tier = RedisTier(link, prefix="feedline:")
        await tier.set(b"k", b"v", 10)
        assert await tier.get(b"k") == b"v"
        assert await failure_of(RedisTier(link).get(b"other")) is Unavailability.AUTH

    path = server.url.removeprefix("unix://")
    async with link_to(f"unix://{login}{path}") as link:
        assert await RedisTier(link, prefix="feedline:").get(b"k") == b"v"


async def test_a_wrong_password_is_told_apart_on_tcp_and_unix(server: Server) -> None:
    for url in (
        server.tcp_url.replace("://", "://nobody:wrong@"),
        server.url.replace("unix:///", "unix://nobody:wrong@/"),
    ):
        async with link_to(url) as link:
            assert await failure_of(link.call(ping)) is Unavailability.AUTH


async def test_tls_with_its_own_authority(server: Server, tmp_path: Path) -> None:
    async with tls_front(server, tmp_path) as front:
        async with link_to(f"{front.url}?ssl_ca_certs={front.authority}") as link:
            tier = RedisTier(link)
            await tier.set(b"k", b"v", 10)
            assert await tier.get(b"k") == b"v"

        async with link_to(front.url) as link:  # An authority that nobody here trusts.
            assert await failure_of(link.call(ping)) is Unavailability.REFUSED


async def test_a_refused_connection_opens_the_breaker() -> None:
    async with link_to(f"redis://127.0.0.1:{free_port()}") as link:
        assert await failure_of(link.call(ping)) is Unavailability.REFUSED
        assert await failure_of(link.call(ping)) is Unavailability.BREAKER_OPEN


async def test_a_silent_server_costs_one_time_out_and_then_nothing() -> None:
    clock = ManualClock(0)
    loop = asyncio.get_running_loop()
    async with silent_server() as url, link_to(url, timeout_s=0.05, breaker=Breaker(clock)) as link:
        tier = RedisTier(link)
        together = await asyncio.gather(*(failure_of(tier.get(b"k")) for _ in range(20)))
        assert set(together) == {Unavailability.TIMEOUT}

        began = loop.time()
        reasons = Counter([await failure_of(tier.get(b"k")) for _ in range(1000)])
        assert reasons == {Unavailability.BREAKER_OPEN: 1000}
        assert loop.time() - began < 0.5

        clock.advance(1)
        probes = Counter(await asyncio.gather(*(failure_of(tier.get(b"k")) for _ in range(20))))
        assert probes == {Unavailability.TIMEOUT: 1, Unavailability.BREAKER_OPEN: 19}


async def test_a_caller_with_less_time_than_the_limit_opens_the_breaker_as_well() -> None:
    async with silent_server() as url, link_to(url, timeout_s=0.05) as link:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.04):
                await link.call(ping)

        assert link.state is BreakerState.OPEN


async def test_a_quick_cancel_says_nothing_about_the_server() -> None:
    async with silent_server() as url, link_to(url) as link:
        call = asyncio.create_task(link.call(ping))
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

        assert link.state is BreakerState.CLOSED


async def test_what_does_not_speak_the_protocol_is_unavailable() -> None:
    async with babbling_server() as url, link_to(url) as link:
        assert await failure_of(link.call(ping)) is Unavailability.PROTOCOL


async def test_an_error_reply_is_unavailable_and_leaves_the_breaker_closed(server: Server) -> None:
    async with link_to(server.url) as link, client_of(server.url) as client:
        await client.execute_command("RPUSH", "list", "x")  # type: ignore[no-untyped-call]

        assert await failure_of(RedisTier(link).get(b"list")) is Unavailability.SERVER_ERROR
        assert await link.call(ping)


async def test_ten_times_more_calls_than_connections_are_counted_and_leave_the_pool_whole(server: Server) -> None:
    seen: Counter[Unavailability] = Counter()
    client = open_client(server.url, max_connections=5)
    link = RedisLink(client, timeout_s=5, observe=lambda reason: seen.update([reason]))
    tier = RedisTier(link)
    await tier.set(b"k", b"v", 10)

    for _ in range(20):
        results = await asyncio.gather(*(tier.get(b"k") for _ in range(50)), return_exceptions=True)
        served = [result for result in results if result == b"v"]
        refused = [result for result in results if isinstance(result, TierUnavailable)]
        assert len(served) >= 5
        assert len(served) + len(refused) == 50

    assert set(seen) == {Unavailability.POOL_FULL}
    assert link.state is BreakerState.CLOSED
    assert in_use(client) == 0
    await link.close()


async def test_a_killed_server_is_noticed_and_hits_are_back_after_the_pause(own_server: Server) -> None:
    clock = ManualClock(0)
    async with link_to(own_server.url, breaker=Breaker(clock)) as link:
        tier = RedisTier(link)
        for _ in range(20):
            await tier.set(b"k", b"v", 10)
            own_server.kill()
            assert await failure_of(tier.get(b"k")) is Unavailability.REFUSED
            assert await failure_of(tier.get(b"k")) is Unavailability.BREAKER_OPEN

            own_server.start()
            clock.advance(2)
            assert await tier.get(b"k") is None
            assert link.state is BreakerState.CLOSED


async def test_a_server_that_pauses_costs_one_time_out_and_late_replies_reach_nobody(own_server: Server) -> None:
    clock = ManualClock(0)
    async with link_to(own_server.url, timeout_s=0.1, breaker=Breaker(clock)) as link:
        tier = RedisTier(link)
        for number in range(10):
            await link.call(lambda client, n=number: client.set(f"k{n}", f"v{n}"), timeout_s=5)  # type: ignore[misc]
        own_server.signal(signal.SIGSTOP)
        try:
            calls = [failure_of(tier.get(b"k%d" % number)) for number in range(10)]
            assert set(await asyncio.gather(*calls)) == {Unavailability.TIMEOUT}
        finally:
            own_server.signal(signal.SIGCONT)

        clock.advance(2)
        patient = RedisTier(link)
        for number in (9, 0, 4, 2):
            value = await link.call(lambda client, n=number: client.get(f"k{n}"), timeout_s=5)  # type: ignore[misc]
            assert value == b"v%d" % number
        assert await patient.get(b"k1") == b"v1"


async def in_use_beside_this_call(client: Redis) -> int:
    return in_use(client)


def in_use(client: Redis) -> int:
    return client.connection_pool.get_connection_count()[1][0]


async def test_a_storm_of_cancels_never_mixes_up_values(server: Server) -> None:
    """CVE-2023-28858: a cancelled command must take its reply with it."""
    rng = random.Random(2624)
    rounds = 600
    keys = [b"k%d" % number for number in range(50)]
    seen: Counter[str] = Counter()

    async def work(tier: RedisTier, key: bytes) -> bytes | None:
        if rng.random() < 0.3:
            await tier.set(key, b"value of " + key, 60)
            return None
        return await tier.get(key)

    async with link_to(server.url, max_connections=8) as link:
        tier = RedisTier(link)
        for _ in range(rounds):
            asked = [rng.choice(keys) for _ in range(8)]
            tasks = [asyncio.create_task(work(tier, key)) for key in asked]
            for task in rng.sample(tasks, 5):
                for _ in range(rng.randrange(4)):
                    await asyncio.sleep(0)
                task.cancel()
                if rng.random() < 0.3:
                    await asyncio.sleep(0)
                    task.cancel()
            for key, result in zip(asked, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
                seen[type(result).__name__] += 1
                assert result in {None, b"value of " + key} or isinstance(result, asyncio.CancelledError)
        assert set(seen) == {"bytes", "NoneType", "CancelledError"}
        assert min(seen["bytes"], seen["CancelledError"]) > rounds
        for key in keys:
            assert await tier.get(key) in {None, b"value of " + key}
        assert await link.call(in_use_beside_this_call) == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1", "127.0.0.1:6379", ""])
def test_a_url_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected redis://, rediss:// or unix://"):
        open_client(url)


def test_a_link_without_time_is_refused() -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        RedisLink(open_client("redis://127.0.0.1"), timeout_s=0)
