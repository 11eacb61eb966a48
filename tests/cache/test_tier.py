from __future__ import annotations

import pytest

from cache.tier import OVERHEAD_BYTES, LocalTier
from tests.clock import ManualClock


async def test_a_value_is_kept_for_its_lifetime() -> None:
    clock = ManualClock()
    tier = LocalTier(10_000, clock)
    await tier.set(b"k", b"v", 10)

    clock.advance(9.9)
    assert await tier.get(b"k") == b"v"
    clock.advance(0.1)
    assert await tier.get(b"k") is None


async def test_memory_is_bounded_and_the_least_recently_used_goes_first() -> None:
    tier = LocalTier(10 * (OVERHEAD_BYTES + 100), ManualClock())
    for number in range(10):
        await tier.set(bytes([number]), b"x" * 99, 10)
    await tier.get(b"\x00")

    await tier.set(b"\x0a", b"x" * 99, 10)

    assert await tier.get(b"\x00") is not None
    assert await tier.get(b"\x01") is None
    assert tier.size_bytes == 10 * (OVERHEAD_BYTES + 100)


async def test_what_has_expired_frees_its_space() -> None:
    clock = ManualClock()
    tier = LocalTier(2 * (OVERHEAD_BYTES + 2), clock)
    await tier.set(b"a", b"x", 1)
    await tier.set(b"b", b"x", 100)
    await tier.get(b"a")
    clock.advance(2)

    await tier.set(b"c", b"x", 100)

    assert await tier.get(b"b") == b"x"
    assert await tier.get(b"c") == b"x"


async def test_a_value_larger_than_the_tier_replaces_nothing_and_leaves_no_older_one() -> None:
    tier = LocalTier(2000, ManualClock())
    await tier.set(b"k", b"old", 10)
    await tier.set(b"other", b"v", 10)

    await tier.set(b"k", b"x" * 2000, 10)

    assert await tier.get(b"k") is None
    assert await tier.get(b"other") == b"v"


async def test_a_closed_tier_is_empty() -> None:
    tier = LocalTier(2000, ManualClock())
    await tier.set(b"k", b"v", 10)

    await tier.close()

    assert (len(tier), tier.size_bytes) == (0, 0)


def test_a_tier_without_space_is_refused() -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        LocalTier(0)
