"""Latency of a served feed: one client, one request after the other, over gRPC on loopback.

    python benchmarks/latency.py --snapshots data/snapshots --events data/events.parquet [--requests 2000] [--json]

Starts the real service as a process of its own (embedded Valkey, free ports) and asks it for pages of 20 items.
`scored`: cache off, every request a context of its own out of the events file. `hit`: cache on, contexts asked
before. Times are the client's, from the call to the parsed answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow.parquet as pq

from protos import feed_pb2, feed_pb2_grpc

WARM_UP = 100


def contexts(events: Path, count: int, seed: int = 1) -> list[list[str]]:
    """`count` lists of 1 to 10 item ids that stand together in the events file, drawn with a seed."""
    ids = pq.read_table(events, columns=["item_id"])["item_id"]
    rng = random.Random(seed)
    starts = [rng.randrange(len(ids) - 10) for _ in range(count)]
    return [ids.slice(start, rng.randint(1, 10)).to_pylist() for start in starts]


@asynccontextmanager
async def service(snapshots: Path, **environment: str) -> AsyncIterator[feed_pb2_grpc.FeedServiceStub]:
    """A stub of a service that was started for this measurement."""
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "FEEDLINE_SERVE__PORT": "0",
            "FEEDLINE_CONSOLE__ENABLED": "false",
            "FEEDLINE_SNAPSHOTS__FOLDER": str(snapshots),
            "FEEDLINE_STATE__FOLDER": f"{folder}/valkey",
            "FEEDLINE_LOG__FORMAT": "json",
        }
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "services.cli",
            "serve",
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **given, **environment},
        )
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{await _port(process)}") as channel:
                yield feed_pb2_grpc.FeedServiceStub(channel)
        finally:
            process.terminate()
            await process.wait()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    async for line in process.stderr:
        if line.startswith(b"{") and (entry := json.loads(line))["event"] == "ready":
            return int(entry["grpc_port"])
    raise SystemExit("the service ended before it was ready")


async def measure(stub: feed_pb2_grpc.FeedServiceStub, requests: list[feed_pb2.GetFeedRequest]) -> dict[str, Any]:
    """Milliseconds of each request, one after the other, and what the answers were."""
    took: list[float] = []
    outcomes: dict[str, int] = {}
    for at, request in enumerate(requests):
        start = time.perf_counter()
        page = await stub.GetFeed(request, timeout=5)
        if at >= WARM_UP:
            took.append((time.perf_counter() - start) * 1e3)
            rung, cache = feed_pb2.Rung.Name(page.provenance.rung), feed_pb2.CacheOutcome.Name(page.provenance.cache)
            name = f"{rung.removeprefix('RUNG_')}/{cache.removeprefix('CACHE_OUTCOME_')}/{len(page.items)} items"
            outcomes[name] = outcomes.get(name, 0) + 1
    p50, p95, p99 = np.percentile(took, [50, 95, 99])
    return {
        "requests": len(took),
        "p50_ms": round(p50, 2),
        "p95_ms": round(p95, 2),
        "p99_ms": round(p99, 2),
        "max_ms": round(max(took), 2),
        "answers": outcomes,
    }


async def main() -> None:
    """Measures both and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=Path, required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    asked = [
        feed_pb2.GetFeedRequest(
            session_id=f"s{at}",
            page_size=20,
            recent_events=[feed_pb2.Event(item_id=item, type=feed_pb2.EVENT_TYPE_CLICK) for item in items],
        )
        for at, items in enumerate(contexts(options.events, options.requests + WARM_UP))
    ]
    result: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
    }
    async with service(options.snapshots, FEEDLINE_CACHE__ENABLED="false") as stub:
        result["scored"] = await measure(stub, asked)
    async with service(options.snapshots) as stub:
        await measure(stub, asked)
        result["hit"] = await measure(stub, asked)
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{result['machine']}, Python {result['python']}")
    for name in ("scored", "hit"):
        print(f"{name:7}", "  ".join(f"{key} {value}" for key, value in result[name].items()))


if __name__ == "__main__":
    asyncio.run(main())
