"""The policy: process, then shared tier, then one computation for all who ask."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from cache.counters import CacheCounters, Observer, Outcome, WriteOutcome
from cache.envelope import MAX_LIFETIME_MS, Entry, Rejection, seal, unseal
from cache.flight import Flight
from cache.tier import CacheError, Tier, TierUnavailable, Unavailability


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """How long answers live and how much may be kept. Lifetimes are seconds since the answer was computed.

    Until `soft_s` an answer is served as it is; until `hard_s` it is kept for the case that nothing better can be
    had. Both are multiplied by one random factor in [1 - jitter, 1 + jitter], so that answers computed together do
    not expire together.
    """

    enabled: bool = True
    soft_s: float = 60.0
    hard_s: float = 3600.0
    jitter: float = 0.1
    max_payload_bytes: int = 65536
    max_writes_in_flight: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.soft_s <= self.hard_s:
            raise ValueError(f"soft_s: expected above 0 and at most hard_s ({self.hard_s}), got {self.soft_s}")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter: expected 0 up to, not including, 1, got {self.jitter}")
        if self.hard_s * (1 + self.jitter) * 1000 > MAX_LIFETIME_MS:
            raise ValueError(f"hard_s: expected at most 49 days with its jitter, got {self.hard_s}")
        if self.max_payload_bytes < 1 or self.max_writes_in_flight < 0:
            raise ValueError("max_payload_bytes: expected at least 1; max_writes_in_flight: expected at least 0")


@dataclass(frozen=True, slots=True)
class Computed:
    """What a computation gives. What is not `storable` (degraded) is handed to all who wait and never kept."""

    payload: bytes
    storable: bool


@dataclass(frozen=True, slots=True)
class Found:
    """An answer and where it comes from. `age_s` is 0 when computed now.

    `unavailable` says why the shared tier was not asked or did not answer, if so.
    """

    payload: bytes
    outcome: Outcome
    age_s: float = 0.0
    unavailable: Unavailability | None = None


class ComputeFailed(CacheError):
    """The computation raised `error`. `stale` is the expired answer that was met on the way, if there is one."""

    def __init__(self, error: Exception, stale: Found | None = None) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
        self.stale = stale


Compute = Callable[[], Awaitable[Computed]]


class FeedCache:
    """Answers by content key. `local` and `shared` may each be absent; the cache owns both and closes them."""

    def __init__(
        self,
        policy: CachePolicy,
        local: Tier | None,
        shared: Tier | None,
        *,
        clock: Callable[[], float] = time.time,
        rng: random.Random,
        observer: Observer | None = None,
    ) -> None:
        """`clock` is Unix time in seconds: ages are compared between machines. `rng` draws the jitter."""
        self._policy = policy
        self._local = local
        self._shared = shared
        self._clock = clock
        self._rng = rng
        self._flight: Flight[Found] = Flight()
        self._writes: set[asyncio.Task[None]] = set()
        self.counters = CacheCounters(observer=observer)

    async def get(self, key: bytes, compute: Compute, *, lane: bytes = b"") -> Found:
        """Return the answer for `key`, computing it at most once for all who ask at the same time in one `lane`.

        Those whose computation may be refused where another's is not (a prefetch) ask in a lane of their own.
        `compute` runs in a task of its own, which goes on while anybody waits for it, and is cancelled with the last
        of them. Raises `ComputeFailed` if it raised, to each who waited; a cancellation passes through.
        """
        if not self._policy.enabled:
            return self._counted(await _compute_alone(compute))
        held = await self._read_local(key)
        if held is not None and held.is_fresh(self._now_ms()):
            return self._counted(self._found(held, Outcome.LOCAL))
        try:
            found, joined = await self._flight.do(lane + key, partial(self._answer, key, compute))
        except ComputeFailed as failed:
            raise ComputeFailed(failed.error, self._better(held, failed.stale)) from failed.error
        except Exception as error:
            raise ComputeFailed(error, self._better(held, None)) from error
        if joined and found.outcome is Outcome.MISS:
            found = replace(found, outcome=Outcome.JOINED)
        return self._counted(found)

    async def peek(self, key: bytes, *, shared: bool = False) -> Found | None:
        """Return what is kept for `key`, fresh (LOCAL, SHARED) or expired (STALE), and compute nothing.

        The shared tier is asked only if `shared` is set and the process has no fresh answer.
        """
        if not self._policy.enabled:
            return None
        held = await self._read_local(key)
        if held is not None and held.is_fresh(self._now_ms()):
            return self._counted(self._found(held, Outcome.LOCAL))
        far: Entry | None = None
        unavailable = None
        if shared:
            far, unavailable = await self._read_shared(key)
            if far is not None and far.is_fresh(self._now_ms()):
                await self._keep_local(key, far)
                return self._counted(self._found(far, Outcome.SHARED))
        stale = self._better(held, None if far is None else self._stale(far))
        return None if stale is None else self._counted(replace(stale, unavailable=unavailable))

    def took_stale(self) -> None:
        """Count that a caller served `ComputeFailed.stale`."""
        self.counters.count(Outcome.STALE)

    async def close(self) -> None:
        """Cancel computations, finish the writes in flight (the tier's time-out bounds each), close the tiers."""
        await self._flight.close()
        await asyncio.gather(*self._writes)
        for tier in (self._shared, self._local):
            if tier is not None:
                await tier.close()

    async def _answer(self, key: bytes, compute: Compute) -> Found:
        entry, unavailable = await self._read_shared(key)
        if entry is not None and entry.is_fresh(self._now_ms()):
            await self._keep_local(key, entry)
            return self._found(entry, Outcome.SHARED)
        try:
            computed = await compute()
        except Exception as error:
            raise ComputeFailed(error, None if entry is None else self._stale(entry)) from error
        await self._store(key, computed)
        return Found(computed.payload, Outcome.MISS, unavailable=unavailable)

    async def _store(self, key: bytes, computed: Computed) -> None:
        if not computed.storable:
            self.counters.count(WriteOutcome.NOT_STORABLE)
            return
        if len(computed.payload) > self._policy.max_payload_bytes:
            self.counters.count(WriteOutcome.TOO_LARGE)
            return
        stretch = 1000 * self._rng.uniform(1 - self._policy.jitter, 1 + self._policy.jitter)
        soft_ms, hard_ms = round(self._policy.soft_s * stretch), round(self._policy.hard_s * stretch)
        entry = Entry(computed.payload, self._now_ms(), max(1, soft_ms), max(1, hard_ms))
        await self._keep_local(key, entry)
        if self._shared is None:
            return
        if len(self._writes) >= self._policy.max_writes_in_flight:
            self.counters.count(WriteOutcome.DROPPED)
            return
        task = asyncio.create_task(self._write_shared(self._shared, key, entry), name="cache-write")
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write_shared(self, shared: Tier, key: bytes, entry: Entry) -> None:
        try:
            await shared.set(key, seal(key, entry), entry.hard_ms / 1000)
        except TierUnavailable as error:
            self.counters.count(error.reason)
            self.counters.count(WriteOutcome.FAILED)
        else:
            self.counters.count(WriteOutcome.WRITTEN)

    async def _keep_local(self, key: bytes, entry: Entry) -> None:
        if self._local is not None:
            await self._local.set(key, seal(key, entry), entry.remaining_s(self._now_ms()))

    async def _read_local(self, key: bytes) -> Entry | None:
        return None if self._local is None else self._opened(key, await self._local.get(key))

    async def _read_shared(self, key: bytes) -> tuple[Entry | None, Unavailability | None]:
        if self._shared is None:
            return None, None
        try:
            raw = await self._shared.get(key)
        except TierUnavailable as error:
            self.counters.count(error.reason)
            return None, error.reason
        return self._opened(key, raw), None

    def _opened(self, key: bytes, raw: bytes | None) -> Entry | None:
        if raw is None:
            return None
        entry = unseal(key, raw, self._policy.max_payload_bytes)
        if isinstance(entry, Rejection):
            self.counters.count(entry)
            return None
        return entry

    def _better(self, held: Entry | None, other: Found | None) -> Found | None:
        stale = None if held is None else self._stale(held)
        if stale is None or other is None:
            return stale or other
        return min(stale, other, key=lambda found: found.age_s)

    def _stale(self, entry: Entry) -> Found | None:
        return self._found(entry, Outcome.STALE) if entry.is_usable(self._now_ms()) else None

    def _found(self, entry: Entry, outcome: Outcome) -> Found:
        return Found(entry.payload, outcome, entry.age_ms(self._now_ms()) / 1000)

    def _counted(self, found: Found) -> Found:
        self.counters.count(found.outcome)
        return found

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


async def _compute_alone(compute: Compute) -> Found:
    try:
        computed = await compute()
    except Exception as error:
        raise ComputeFailed(error) from error
    return Found(computed.payload, Outcome.OFF)
