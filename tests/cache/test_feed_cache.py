from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from cache.counters import CacheEvent, Outcome, WriteOutcome
from cache.envelope import Entry, Rejection, seal
from cache.feed_cache import CachePolicy, Computed, ComputeFailed, FeedCache, Found
from cache.redis_link import RedisLink, open_client
from cache.redis_tier import RedisTier
from cache.tier import LocalTier, Tier, TierUnavailable, Unavailability
from tests.clock import ManualClock
from tests.servers import Server, client_of

KEY = b"feedline:1:key"
POLICY = CachePolicy(soft_s=60, hard_s=600, jitter=0)


class Answers:
    """A computation that counts its runs and answers or fails as it is told."""

    def __init__(self, payload: bytes = b"answer", *, storable: bool = True) -> None:
        self.runs = 0
        self.computed = Computed(payload, storable)
        self.error: Exception | None = None

    async def __call__(self) -> Computed:
        self.runs += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        return self.computed


class Cache:
    """A cache with its clock, its events and a look behind the writes that run in the background."""

    def __init__(
        self, policy: CachePolicy = POLICY, *, local: bool = True, shared: Tier | None = None, seed: int = 1
    ) -> None:
        self.clock = ManualClock()
        self.events: Counter[CacheEvent] = Counter()
        self.cache = FeedCache(
            policy,
            LocalTier(1 << 20, self.clock) if local else None,
            shared,
            clock=self.clock,
            rng=random.Random(seed),
            observer=lambda event: self.events.update([event]),
        )

    async def until_written(self, count: int = 1) -> None:
        async with asyncio.timeout(5):
            while self.cache.counters.written + self.cache.counters.write_failed < count:  # noqa: ASYNC110
                await asyncio.sleep(0)


def shared_tier(server: Server) -> RedisTier:
    return RedisTier(RedisLink(open_client(server.url), timeout_s=5))


class HeldTier:
    """A shared tier whose writes wait until they are let go, and which keeps nothing."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def get(self, key: bytes) -> bytes | None:
        return None

    async def set(self, key: bytes, value: bytes, ttl_s: float) -> None:
        await self.go.wait()

    async def close(self) -> None:
        self.go.set()


class BrokenTier:
    """A shared tier that cannot be asked."""

    async def get(self, key: bytes) -> bytes | None:
        raise TierUnavailable(Unavailability.REFUSED)

    async def set(self, key: bytes, value: bytes, ttl_s: float) -> None:
        raise TierUnavailable(Unavailability.REFUSED)

    async def close(self) -> None:
        pass


async def test_a_miss_is_computed_once_and_then_found_in_the_process() -> None:
    it, compute = Cache(), Answers()

    assert await it.cache.get(KEY, compute) == Found(b"answer", Outcome.MISS)
    it.clock.advance(30)
    assert await it.cache.get(KEY, compute) == Found(b"answer", Outcome.LOCAL, 30.0)

    assert compute.runs == 1
    assert (it.cache.counters.miss, it.cache.counters.local) == (1, 1)


async def test_after_the_soft_lifetime_the_answer_is_computed_again() -> None:
    it, compute = Cache(), Answers()
    await it.cache.get(KEY, compute)

    it.clock.advance(60)

    assert (await it.cache.get(KEY, compute)).outcome is Outcome.MISS
    assert compute.runs == 2


async def test_askers_at_once_share_one_computation() -> None:
    it, compute = Cache(), Answers()

    found = await asyncio.gather(*(it.cache.get(KEY, compute) for _ in range(50)))

    assert Counter(one.outcome for one in found) == {Outcome.MISS: 1, Outcome.JOINED: 49}
    assert compute.runs == 1


async def test_a_degraded_answer_reaches_all_who_wait_and_is_never_kept(server: Server) -> None:
    tier = shared_tier(server)
    it, compute = Cache(shared=tier), Answers(storable=False)

    found = await asyncio.gather(*(it.cache.get(KEY, compute) for _ in range(3)))

    assert [one.payload for one in found] == [b"answer"] * 3
    assert await it.cache.peek(KEY, shared=True) is None
    assert it.cache.counters.not_storable == 1
    await it.cache.close()


async def test_a_failure_raises_with_the_expired_answer_until_its_hard_lifetime() -> None:
    it, compute = Cache(), Answers()
    await it.cache.get(KEY, compute)
    compute.error = RuntimeError("broken")

    it.clock.advance(599)
    with pytest.raises(ComputeFailed) as failure:
        await it.cache.get(KEY, compute)
    assert failure.value.error is compute.error
    assert failure.value.stale == Found(b"answer", Outcome.STALE, 599.0)

    it.clock.advance(1)
    with pytest.raises(ComputeFailed) as failure:
        await it.cache.get(KEY, compute)
    assert failure.value.stale is None


async def test_a_failure_finds_the_expired_answer_of_the_shared_tier_too(server: Server) -> None:
    first, compute = Cache(shared=shared_tier(server)), Answers()
    await first.cache.get(KEY, compute)
    await first.until_written()
    await first.cache.close()
    compute.error = RuntimeError("broken")

    other = Cache(shared=shared_tier(server))
    other.clock.advance(100)
    with pytest.raises(ComputeFailed) as failure:
        await other.cache.get(KEY, compute)

    assert failure.value.stale == Found(b"answer", Outcome.STALE, 100.0)
    await other.cache.close()


async def test_all_who_waited_get_the_failure() -> None:
    it, compute = Cache(), Answers()
    compute.error = RuntimeError("broken")

    results = await asyncio.gather(*(it.cache.get(KEY, compute) for _ in range(5)), return_exceptions=True)

    assert [type(result) for result in results] == [ComputeFailed] * 5
    assert compute.runs == 1


async def test_a_cancellation_passes_through_and_leaves_the_others() -> None:
    it, compute = Cache(), Answers()
    tasks = [asyncio.create_task(it.cache.get(KEY, compute)) for _ in range(3)]
    await asyncio.sleep(0)

    tasks[0].cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(results[0], asyncio.CancelledError)
    assert [one.payload for one in results[1:] if isinstance(one, Found)] == [b"answer"] * 2


async def test_a_cancelled_computation_is_a_failure_for_those_who_wait() -> None:
    it = Cache()

    async def cancels_itself() -> Computed:
        raise asyncio.CancelledError

    with pytest.raises(ComputeFailed):
        await it.cache.get(KEY, cancels_itself)


async def test_another_process_finds_the_answer_in_the_shared_tier_and_keeps_it(server: Server) -> None:
    one, other, compute = Cache(shared=shared_tier(server)), Cache(shared=shared_tier(server)), Answers()
    await one.cache.get(KEY, compute)
    await one.until_written()
    other.clock.advance(10)

    assert await other.cache.get(KEY, compute) == Found(b"answer", Outcome.SHARED, 10.0)
    assert await other.cache.get(KEY, compute) == Found(b"answer", Outcome.LOCAL, 10.0)

    assert compute.runs == 1
    await one.cache.close()
    await other.cache.close()


async def test_every_shared_key_has_the_hard_lifetime(server: Server) -> None:
    it = Cache(shared=shared_tier(server))
    await it.cache.get(KEY, Answers())
    await it.until_written()

    async with client_of(server.url) as client:
        ttl_ms = await client.pttl(KEY)

    assert 590_000 < ttl_ms <= 600_000
    await it.cache.close()


@pytest.mark.parametrize(
    ("raw", "rejection"),
    [
        (b"\x80\x04pickle", Rejection.FOREIGN),
        (b"FLC\x07" + bytes(60), Rejection.OTHER_VERSION),
        (seal(KEY, Entry(b"answer", 0, 1, 1))[:-1], Rejection.TRUNCATED),
        (seal(b"another key", Entry(b"answer", 0, 1, 1)), Rejection.CORRUPT),
        (seal(KEY, Entry(bytes(70_000), 0, 1, 1)), Rejection.TOO_LARGE),
    ],
)
async def test_what_is_not_an_entry_of_the_key_is_a_counted_miss(
    server: Server, raw: bytes, rejection: Rejection
) -> None:
    it = Cache(shared=shared_tier(server))
    async with client_of(server.url) as client:
        await client.set(KEY, raw)

    found = await it.cache.get(KEY, Answers())

    assert (found.outcome, found.unavailable) == (Outcome.MISS, None)
    assert it.cache.counters.rejected == 1
    assert it.events[rejection] == 1
    await it.cache.close()


async def test_a_key_of_another_type_is_a_counted_miss(server: Server) -> None:
    it = Cache(shared=shared_tier(server))
    async with client_of(server.url) as client:
        await client.execute_command("RPUSH", KEY, "x")  # type: ignore[no-untyped-call]

    found = await it.cache.get(KEY, Answers())

    assert (found.outcome, found.unavailable) == (Outcome.MISS, Unavailability.SERVER_ERROR)
    await it.cache.close()


async def test_without_the_shared_tier_answers_are_computed_and_kept_in_the_process() -> None:
    it, compute = Cache(shared=BrokenTier()), Answers()

    assert await it.cache.get(KEY, compute) == Found(b"answer", Outcome.MISS, 0.0, Unavailability.REFUSED)
    assert (await it.cache.get(KEY, compute)).outcome is Outcome.LOCAL

    await it.until_written()
    assert (it.cache.counters.unavailable, it.cache.counters.write_failed) == (2, 1)


async def test_a_write_never_delays_the_answer_and_too_many_are_dropped() -> None:
    tier = HeldTier()
    it = Cache(CachePolicy(jitter=0, max_writes_in_flight=2), shared=tier)

    for number in range(5):
        await it.cache.get(bytes([number]), Answers())
    assert it.events[WriteOutcome.DROPPED] == 3

    tier.go.set()
    await it.until_written(2)
    await it.cache.get(b"\x09", Answers())
    await it.until_written(3)
    assert it.cache.counters.as_dict() | {"miss": 6, "written": 3, "write_dropped": 3} == it.cache.counters.as_dict()


async def test_close_finishes_the_writes_in_flight(server: Server) -> None:
    it = Cache(shared=shared_tier(server))
    await it.cache.get(KEY, Answers())

    await it.cache.close()

    assert it.cache.counters.written == 1
    async with client_of(server.url) as client:
        assert await client.exists(KEY) == 1


async def test_an_answer_above_the_limit_is_handed_out_and_kept_nowhere() -> None:
    it = Cache(CachePolicy(max_payload_bytes=10))

    assert (await it.cache.get(KEY, Answers(b"x" * 11))).payload == b"x" * 11

    assert await it.cache.peek(KEY) is None
    assert it.cache.counters.too_large == 1


async def test_a_cache_that_is_off_computes_for_each_and_keeps_nothing() -> None:
    it, compute = Cache(CachePolicy(enabled=False)), Answers()

    found = await asyncio.gather(*(it.cache.get(KEY, compute) for _ in range(3)))

    assert {one.outcome for one in found} == {Outcome.OFF}
    assert compute.runs == 3
    assert await it.cache.peek(KEY) is None
    compute.error = RuntimeError("broken")
    with pytest.raises(ComputeFailed):
        await it.cache.get(KEY, compute)


async def test_peek_finds_fresh_and_expired_answers_and_computes_nothing(server: Server) -> None:
    it, far = Cache(shared=shared_tier(server)), Cache(shared=shared_tier(server))
    assert await it.cache.peek(KEY, shared=True) is None
    await far.cache.get(KEY, Answers())
    await far.until_written()

    assert await it.cache.peek(KEY) is None
    assert await it.cache.peek(KEY, shared=True) == Found(b"answer", Outcome.SHARED)
    assert await it.cache.peek(KEY) == Found(b"answer", Outcome.LOCAL)
    it.clock.advance(60)
    assert await it.cache.peek(KEY) == Found(b"answer", Outcome.STALE, 60.0)
    it.clock.advance(540)
    assert await it.cache.peek(KEY, shared=True) is None
    await it.cache.close()
    await far.cache.close()


async def test_lifetimes_vary_within_the_jitter_and_repeat_with_the_seed() -> None:
    async def fresh_for(seed: int) -> list[int]:
        it = Cache(CachePolicy(soft_s=100, hard_s=600, jitter=0.2), seed=seed)
        keys = [bytes([number]) for number in range(30)]
        for key in keys:
            await it.cache.get(key, Answers())
        seconds = dict.fromkeys(keys, 0)
        for _ in range(130):
            it.clock.advance(1)
            for key in keys:
                found = await it.cache.peek(key)
                assert found is not None
                seconds[key] += found.outcome is Outcome.LOCAL
        return list(seconds.values())

    lifetimes = await fresh_for(1)

    assert 79 <= min(lifetimes) < 90
    assert 110 < max(lifetimes) <= 120
    assert lifetimes == await fresh_for(1)
    assert lifetimes != await fresh_for(2)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"soft_s": 0.0}, "soft_s"),
        ({"soft_s": 10.0, "hard_s": 9.0}, "soft_s"),
        ({"jitter": 1.0}, "jitter"),
        ({"hard_s": 5_000_000.0}, "hard_s"),
        ({"max_payload_bytes": 0}, "max_payload_bytes"),
    ],
)
def test_impossible_policies_are_refused_by_name(settings: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CachePolicy(**settings)  # type: ignore[arg-type]
