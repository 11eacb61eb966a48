"""A long time at 1x: nothing grows."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.faults.conftest import PEAK
from tests.faults.load import Load, require_honest
from tests.feed.process import serving

SOAK_S = float(os.environ.get("FEEDLINE_SOAK_S", "4"))
"""A sample; `make long` asks for 30 minutes, and then resident memory is held to its slope, too."""
LONG_S = 600.0
SLICE_S = 2.0
WARM_SHARE = 1 / 3
SLOPE_MB_PER_HOUR = 1.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds."""

    at_s: float
    resident_mb: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int, at_s: float) -> Usage:
        process = Path(f"/proc/{pid}")
        pages = int((process / "statm").read_text().split()[1])
        resident_mb = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
        return cls(at_s, resident_mb, len(list((process / "fd").iterdir())), len(list((process / "task").iterdir())))


@pytest.mark.timeout(SOAK_S + 300)
async def test_a_soak_at_1x_leaves_memory_descriptors_and_threads_as_they_were(tmp_path: Path, shop: Path) -> None:
    """grpc/grpc#43360, redis/redis-py#4121, gorse-io/gorse#1006: what leaks a little at a time."""
    async with serving("-m", "services.cli", folder=tmp_path, snapshots=shop) as (process, feed, _):
        loop = asyncio.get_running_loop()
        load, begun = Load(feed, PEAK), loop.time()
        warm = await load.run(SOAK_S * WARM_SHARE)  # caches fill, pools open
        require_honest(warm)
        usage = [Usage.of(process.pid, loop.time() - begun)]
        while (left := begun + SOAK_S - loop.time()) > 0:
            require_honest(await load.run(min(left, SLICE_S)))
            usage.append(Usage.of(process.pid, loop.time() - begun))
        slope = _slope_mb_per_hour(usage)
        print(f"{SOAK_S:g} s at {PEAK:g} requests a second: {usage[0]} to {usage[-1]}, {slope:.2f} MiB an hour")
        assert usage[-1].descriptors <= max(each.descriptors for each in usage[: len(usage) // 2 + 1]) + 4
        assert usage[-1].threads <= usage[0].threads + 2
        if SOAK_S >= LONG_S:
            assert slope < SLOPE_MB_PER_HOUR


def _slope_mb_per_hour(usage: list[Usage]) -> float:
    """The straight line through resident memory over time, by least squares."""
    if len(usage) < 2:
        return 0.0
    slope, _ = np.polyfit([each.at_s for each in usage], [each.resident_mb for each in usage], 1)
    return float(slope) * 3600
