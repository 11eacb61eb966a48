"""CPU seconds of a scored answer: served, against the bare loop that no server can do without.

    python benchmarks/raw_loop.py --snapshots data/snapshots [--answers 4000] [--clients 16] [--rounds 3] [--json]

Served: the real service as a process of its own, cache off, one thread for FAISS and ONNX Runtime, asked over gRPC by
`--clients` callers who each wait for their page; CPU of its process, and of its tree with the embedded state server,
over the pages on the rung RANKED. The client runs in this process and does not count.

Raw: one thread, no server, the same questions in batches of the same sizes (drawn from the service's own histogram):

    tower tensors -> ONNX Runtime -> FAISS, 500 nearest -> ranker tensors of the first 50 -> ONNX Runtime

Nothing else: no neighbours, no blend, no history, no eligibility by row, no slate, no page, no provenance. FAISS is
called by the service's own Retriever; `feedline bench ann` says what that costs over FAISS alone. Both take turns.

Rerank: one question at a time, 50 candidates; the model's run alone, the ranker with its checks on the same tensors,
and both with the making of the tensors.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import socket
import statistics
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from raw_loop_bare import Raw, raw_cost, rerank_times

from indexer.contract.snapshot import current_id, open_snapshot
from protos import feed_pb2, feed_pb2_grpc
from services.bench.load.service import started
from services.bench.load.usage import usage_of
from services.bench.questions import questions
from services.feed.loading import Loader
from services.feed.question import Question

WARM_UP = 300


@dataclass(frozen=True)
class Served:
    """CPU seconds of one ranked answer, of the process and of its tree; batches by the upper bound of their bucket."""

    cpu_s: float
    tree_cpu_s: float
    per_second: float
    p99_ms: float
    rungs: dict[str, int]
    batches: dict[int, int]
    mean_batch: float


async def served_cost(root: Path, requests: Sequence[feed_pb2.GetFeedRequest], clients: int) -> Served:
    """A service of its own under `clients` callers."""
    port = _free_port()
    settings = {
        "FEEDLINE_CACHE__ENABLED": "false",
        "FEEDLINE_SCORING__THREADS": "1",
        "FEEDLINE_SCORING__ADMISSION": "fixed",
        "FEEDLINE_CONSOLE__ENABLED": "true",
        "FEEDLINE_CONSOLE__PORT": str(port),
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    async with started(root, settings=settings) as service, grpc.aio.insecure_channel(service.target) as channel:
        stub = feed_pb2_grpc.FeedServiceStub(channel)
        await _ask(stub, requests[:WARM_UP], clients)
        before, batches = usage_of(service.pid), await asyncio.to_thread(_batches, port)
        begun = time.perf_counter()
        took, rungs = await _ask(stub, requests[WARM_UP:], clients)
        seconds = time.perf_counter() - begun
        after, more = usage_of(service.pid), await asyncio.to_thread(_batches, port)
    ranked = rungs["RUNG_RANKED"]
    counts = Counter({bound: count - batches[0][bound] for bound, count in more[0].items()})
    return Served(
        cpu_s=(after.cpu_s - before.cpu_s) / ranked,
        tree_cpu_s=(after.tree_cpu_s - before.tree_cpu_s) / ranked,
        per_second=ranked / seconds,
        p99_ms=float(np.percentile(took, 99)) * 1e3,
        rungs=dict(rungs),
        batches=dict(+counts),
        mean_batch=(more[1] - batches[1]) / sum(counts.values()),
    )


async def _ask(
    stub: feed_pb2_grpc.FeedServiceAsyncStub, requests: Sequence[feed_pb2.GetFeedRequest], clients: int
) -> tuple[list[float], Counter[str]]:
    left = iter(requests)
    took: list[float] = []
    rungs: Counter[str] = Counter()

    async def caller() -> None:
        for request in left:
            start = time.perf_counter()
            page = await stub.GetFeed(request, timeout=5)
            took.append(time.perf_counter() - start)
            rungs[feed_pb2.Rung.Name(page.provenance.rung)] += 1

    await asyncio.gather(*(caller() for _ in range(clients)))
    return took, rungs


def _batches(port: int) -> tuple[dict[int, int], float]:
    """Batches so far by the upper bound of their bucket, and the pieces of work in them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
        text = page.read().decode()
    bounds = re.findall(r'feedline_batch_size_bucket\{le="([0-9.]+)"\} ([0-9.e+]+)', text)
    upto = [(int(float(bound)), int(float(count))) for bound, count in bounds]
    counts = {bound: count - below for (bound, count), (_, below) in zip(upto, [(0, 0), *upto], strict=False)}
    total = re.search(r"feedline_batch_size_sum ([0-9.e+]+)", text)
    assert total is not None
    return counts, float(total[1])


def sizes_like(batches: dict[int, int], mean: float, rng: np.random.Generator) -> list[int]:
    """Batch sizes in the proportions of the buckets; within a bucket those that meet the mean best."""
    lows = {bound: below + 1 for bound, below in zip(sorted(batches), [0, *sorted(batches)], strict=False)}
    spread = {bound: bound - low for bound, low in lows.items()}
    least, room = (sum(of[bound] * count for bound, count in batches.items()) for of in (lows, spread))
    share = min(1.0, max(0.0, (mean * sum(batches.values()) - least) / room)) if room else 0.0
    out = [
        lows[bound] + int(rng.random() < (exact := share * spread[bound]) % 1) + int(exact)
        for bound, count in batches.items()
        for _ in range(count)
    ]
    rng.shuffle(out)
    return out


def requests_of(asked: Sequence[Question]) -> list[feed_pb2.GetFeedRequest]:
    """The same questions over the wire: the session's events, oldest first."""
    return [
        feed_pb2.GetFeedRequest(
            session_id=f"s{at}",
            page_size=20,
            recent_events=[
                feed_pb2.Event(item_id=question.loaded.items.item_id(row), type=feed_pb2.EVENT_TYPE_CLICK)
                for row in reversed(question.context.rows.tolist())
            ],
        )
        for at, question in enumerate(asked)
    ]


def _free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


def main() -> None:
    """Measures both, taking turns, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=Path, required=True)
    parser.add_argument("--answers", type=int, default=4000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    name = current_id(options.snapshots)
    if name is None:
        sys.exit(f"{options.snapshots}: nothing is published")
    loaded = Loader(exact_below=10_000, threads=1).load(open_snapshot(options.snapshots / name), whole=True)
    raw = Raw(loaded, options.snapshots / name)
    asked = questions(loaded, options.answers + WARM_UP)
    requests = requests_of(asked)
    rng = np.random.default_rng(1)
    rounds: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        served = asyncio.run(served_cost(options.snapshots, requests, options.clients))
        sizes = sizes_like(served.batches, served.mean_batch, rng)
        raw_cost(raw, asked, sizes[:20])
        bare = raw_cost(raw, asked[WARM_UP:], sizes)
        rounds.append(
            {
                "raw_ms": round(bare * 1e3, 3),
                "served_ms": round(served.cpu_s * 1e3, 3),
                "served_with_state_server_ms": round(served.tree_cpu_s * 1e3, 3),
                "ratio": round(served.cpu_s / bare, 3),
                "served_per_second": round(served.per_second, 1),
                "served_p99_ms": round(served.p99_ms, 1),
                "rungs": served.rungs,
                "served_batches_up_to": served.batches,
                "served_mean_batch": round(served.mean_batch, 2),
                "raw_mean_batch": round(statistics.fmean(sizes), 2),
                "raw_batches": dict(sorted(Counter(sizes).items())),
            }
        )
        print(f"round {len(rounds)}: ratio {rounds[-1]['ratio']}", file=sys.stderr)
    result = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "snapshot": name,
        "items": loaded.items.count,
        "synthetic": loaded.items.item_id(0).startswith("synthetic"),
        "index": loaded.manifest.index.model_dump(include={"kind", "nprobe", "recall_at_500"}),
        "clients": options.clients,
        "cpu_ratio": statistics.median(each["ratio"] for each in rounds),
        "raw_ms": statistics.median(each["raw_ms"] for each in rounds),
        "served_ms": statistics.median(each["served_ms"] for each in rounds),
        "rerank_50": rerank_times(raw, loaded, asked[:1000]),
        "rounds": rounds,
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return
    print(f"{result['items']:,} items, {loaded.manifest.index.kind}; {result['machine']}")
    print(f"CPU ms an answer: raw {result['raw_ms']}, served {result['served_ms']}, ratio {result['cpu_ratio']}")
    print("rerank 50:", result["rerank_50"])
    for each in rounds:
        print(each)


if __name__ == "__main__":
    main()
