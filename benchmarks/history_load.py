"""How fast histories are loaded, and what reading one costs a page. The users are simulated.

    python benchmarks/history_load.py [--users 100000] [--items 50] [--json]

Loading: purchases of simulated users go through `feedline events load` into an embedded Valkey server, first into an
empty one, then again over what stands there, and once more after half of it was killed. Reading: `SessionStore.read` of
a session with 20 events, alone and with a history of 256 items, by turns in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cache.embedded import EmbeddedValkey
from cache.redis_link import RedisLink, open_client
from services.domain import EventType, RecordedEvents, ShopEvent
from services.feed.event_stream import EventStream
from services.feed.sessions import SessionStore
from services.feed.state_keys import StateKeys

NOW_MS = 1_790_000_000_000
READS = 2000


def simulate(path: Path, users: int, items: int, seed: int = 1) -> int:
    """Purchases of `users` users of about `items` different items each, in baskets of about 6; how many."""
    random = np.random.default_rng(seed)
    written = 0
    with pq.ParquetWriter(path, _schema()) as writer:
        for first in range(0, users, 10_000):
            ids = np.arange(first, min(users, first + 10_000))
            owner = np.repeat(ids, random.poisson(1.07 * items, len(ids)))
            basket = random.integers(0, np.maximum(1, items // 5), len(owner))
            item = (random.zipf(1.4, len(owner)) * 7919 + owner * random.integers(1, 60, len(owner))) % 90_000
            moment = NOW_MS - 86_400_000 * (1 + basket * 7) + random.integers(0, 600_000, len(owner))
            columns = [
                pa.array([f"user-{each}" for each in owner]),
                pa.array([f"basket-{one}-{other}" for one, other in zip(owner, basket, strict=True)]),
                pa.array([f"item-{each}" for each in item]),
                pa.array(moment, pa.timestamp("ms", "UTC")),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=_schema()))
            written += len(owner)
    return written


def _schema() -> pa.Schema:
    text = [(name, pa.string()) for name in ("user_id", "session_id", "item_id")]
    return pa.schema([*text, ("occurred_at", pa.timestamp("ms", "UTC"))])


def load(events: Path, folder: Path, url: str) -> dict[str, Any]:
    """One `feedline events load`, with what it printed."""
    begun = time.perf_counter()
    done = subprocess.run(_command(events, folder, url), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the load ended with {done.returncode}: {done.stderr}")
    summary: dict[str, Any] = json.loads(done.stdout)
    loaded = summary["loaded"]
    return {
        "wall_s": round(time.perf_counter() - begun, 1),
        "read_and_group_s": round(summary["seconds"]["events"] + summary["seconds"]["histories"], 1),
        "users_per_s": round(loaded["users"] / loaded["seconds"]) if loaded["users"] else 0,
        **loaded,
    }


def _command(events: Path, folder: Path, url: str) -> list[str]:
    command = [sys.executable, "-m", "services.cli", "events", "load", str(events), "--json"]
    return [*command, "--url", url, "--work", str(folder / "load")]


async def killed_half_way(events: Path, folder: Path, server: EmbeddedValkey, users: int) -> int:
    """Kills a load when half of the histories are there; how many are."""
    process = await asyncio.create_subprocess_exec(
        *_command(events, folder, server.url), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    client = open_client(server.url, max_connections=1)
    waiting = asyncio.create_task(process.wait())
    there = 0
    while there < users // 2 and not (await asyncio.wait([waiting], timeout=0.01))[0]:
        there = int(await client.dbsize())
    process.kill()
    await waiting
    await client.aclose()
    return there


async def reads(url: str) -> dict[str, Any]:
    """Milliseconds of a read, by turns without and with the history."""
    link = RedisLink(open_client(url), timeout_s=1)
    sessions = SessionStore(link, StateKeys("reads:"))
    stream = EventStream(link, StateKeys("reads:"), sessions, timeout_s=5)
    for basket in range(64):
        bought = [
            ShopEvent(f"b{basket}-{at}", f"item-{basket * 5 + at}", EventType.PURCHASE, NOW_MS + basket * 86_400_000)
            for at in range(5)
        ]
        await stream.record(RecordedEvents(f"s{basket}", "user", "default", "", tuple(bought)))
    viewed = [ShopEvent(f"v{at}", f"item-{at}", EventType.VIEW, NOW_MS) for at in range(20)]
    await stream.record(RecordedEvents("now", "user", "default", "", tuple(viewed)))
    took: dict[str, list[float]] = {"": [], "user": []}
    for _ in range(READS):
        for user, times in took.items():
            begun = time.perf_counter()
            known = await sessions.read("default", "now", user)
            times.append((time.perf_counter() - begun) * 1e3)
            assert (len(known.events), len(known.history.items)) == (20, 256 if user else 0)
    await link.close()
    quantiles = {
        name: dict(zip(("p50_ms", "p99_ms"), np.percentile(took[user], [50, 99]).round(3).tolist(), strict=True))
        for name, user in (("session", ""), ("session_and_256_items", "user"))
    }
    ratio = quantiles["session_and_256_items"]["p50_ms"] / quantiles["session"]["p50_ms"]
    return {**quantiles, "p50_ratio": round(ratio, 2)}


async def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "users": "simulated"}
    with tempfile.TemporaryDirectory() as name:
        folder, events = Path(name), Path(name) / "events.parquet"
        result["purchases"] = simulate(events, options.users, options.items)
        async with EmbeddedValkey(folder / "valkey", maxmemory_bytes=4 << 30) as server:
            client = open_client(server.url, max_connections=1)
            result["first"] = await asyncio.to_thread(load, events, folder, server.url)
            memory = await client.info("memory")
            result["bytes_a_user"] = round(memory["used_memory"] / options.users)
            result["again"] = await asyncio.to_thread(load, events, folder, server.url)
            await client.flushall()
            result["killed_after"] = await killed_half_way(events, folder, server, options.users)
            result["resumed"] = await asyncio.to_thread(load, events, folder, server.url)
            result["read"] = await reads(server.url)
            await client.aclose()
    result["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for key, value in result.items():
        print(
            f"{key:14}",
            "  ".join(f"{name} {each}" for name, each in value.items()) if isinstance(value, dict) else value,
        )


if __name__ == "__main__":
    asyncio.run(main())
