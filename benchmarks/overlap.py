"""Whether the two stages of scoring should overlap: retrieval of one batch while the batch before is reranked.

    python benchmarks/overlap.py --snapshots data/snapshots [--batches 60] [--size 16] [--rounds 5] [--json]

`serial`: one thread does both stages of a batch, as the service does. `overlapped`: one thread retrieves, another
reranks, with one batch between them. Both run on the same batches and take turns; FAISS and ONNX Runtime have one
thread each and release the interpreter's lock, the rest of both stages holds it. Retrieval is made dearer by searching
each batch several times (`--times`), so that several ratios of the stages are met. Wants two idle cores.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from indexer.contract.snapshot import current_id, open_snapshot
from services.bench.questions import questions
from services.feed.loading import Loader
from services.feed.rerank import Retrieved, rerank, retrieve
from services.feed.work import Work

Batch = Sequence[Work]


def dear(times: int, works: Batch) -> list[Retrieved]:
    """The first stage, done so many times."""
    for _ in range(times - 1):
        retrieve(works)
    return retrieve(works)


def serial(batches: Sequence[Batch], times: int) -> float:
    """Seconds."""
    start = time.perf_counter()
    for works in batches:
        rerank(works, dear(times, works))
    return time.perf_counter() - start


def overlapped(batches: Sequence[Batch], times: int) -> float:
    """Seconds."""
    between: queue.Queue[tuple[Batch, list[Retrieved]] | None] = queue.Queue(maxsize=1)

    def second() -> None:
        while (found := between.get()) is not None:
            rerank(*found)

    start = time.perf_counter()
    thread = threading.Thread(target=second)
    thread.start()
    for works in batches:
        between.put((works, dear(times, works)))
    between.put(None)
    thread.join()
    return time.perf_counter() - start


def shares(batches: Sequence[Batch], times: int) -> float:
    """How many times as long as the second stage the first takes."""
    first = second = 0.0
    for works in batches:
        start = time.perf_counter()
        found = dear(times, works)
        middle = time.perf_counter()
        rerank(works, found)
        first, second = first + middle - start, second + time.perf_counter() - middle
    return first / second


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, nargs="+", default=[1, 4, 12])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    name = current_id(options.snapshots)
    if name is None:
        sys.exit(f"{options.snapshots}: nothing is published")
    loaded = Loader(exact_below=10_000, threads=1).load(open_snapshot(options.snapshots / name), whole=True)
    works = [Work(question) for question in questions(loaded, options.batches * options.size)]
    batches = [works[at : at + options.size] for at in range(0, len(works), options.size)]
    found: list[dict[str, Any]] = []
    for times in options.times:
        ratio = shares(batches, times)
        gains, rates = [], []
        for turn in range(options.rounds):
            took: dict[str, float] = {}
            for run in (serial, overlapped)[:: -1 if turn % 2 else 1]:
                took[run.__name__] = partial(run, batches, times)()
            gains.append(took["serial"] / took["overlapped"])
            rates.append(len(works) / took["serial"])
        found.append(
            {
                "retrieve_over_rerank": round(ratio, 2),
                "serial_per_second": round(statistics.median(rates), 1),
                "gain": round(statistics.median(gains), 3),
                "gains": [round(gain, 3) for gain in gains],
            }
        )
    result = {"items": loaded.items.count, "snapshot": name, "batch": options.size, "found": found}
    print(json.dumps(result, indent=None if not options.json else 1))


if __name__ == "__main__":
    main()
