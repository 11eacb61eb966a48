"""`feedline bench batching`: throughput and p99 by batch size on the compute thread, and the settings that follow."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from indexer.contract.plots import Line, lines, sheet
from indexer.contract.snapshot import SnapshotError, current_id, open_snapshot
from services.bench.questions import questions
from services.errors import StartError
from services.feed.loading import Loader
from services.feed.rerank import Scored, score
from services.feed.work import Work
from services.settings import Settings

SIZES = (1, 2, 4, 8, 16, 32, 64)
_ENOUGH = 0.97


@dataclass(frozen=True, slots=True)
class Point:
    """Batches of one size: full scorings a second, and the milliseconds of a batch; of its two stages the median."""

    size: int
    batches: int
    per_second: float
    p50_ms: float
    p99_ms: float
    retrieve_ms: float
    rerank_ms: float

    @property
    def answered_ms(self) -> float:
        """p99 of who comes when a batch has just begun: waits for it, then for the own one."""
        return 2 * self.p99_ms


@dataclass(frozen=True, slots=True)
class Advice:
    """`largest`: the largest batch that keeps the budget; 0: none does. The rest are settings of [scoring].

    `max_batch` is the smallest that comes within 3 % of the best throughput among those that keep it: what is larger
    only waits longer. `max_in_flight`: as many scorings as end within the budget at that rate.
    """

    budget_ms: float
    largest: int
    max_batch: int
    max_pairs: int
    max_in_flight: int


def bench_batching(
    root: Path, settings: Settings, *, each: int, rounds: int, sizes: Sequence[int] = SIZES
) -> dict[str, Any]:
    """Measures the snapshot that CURRENT names: `rounds` of `each` questions for each size, the sizes taking turns.

    Raises SnapshotError when nothing is published, or when it cannot be served; StartError when it cannot be scored.
    """
    name = current_id(root)
    if name is None:
        raise SnapshotError(f"{root}: nothing is published")
    loader = Loader(exact_below=settings.serve.exact_scan_items, threads=settings.scoring.threads)
    loaded = loader.load(open_snapshot(root / name), whole=True)
    if not loaded.searches or loaded.ranker is None:
        raise StartError(f"snapshot {name}: batching is measured where there is vector retrieval and a ranker")
    works = [Work(question) for question in questions(loaded, max(each, *sizes))]
    points = measure(works, sizes, rounds, score)
    advice = advise(points, budget_of(settings), works[0].pairs)
    return {
        "snapshot": name,
        "items": loaded.items.count,
        "synthetic": loaded.items.item_id(0).startswith("synthetic"),
        "index": loaded.manifest.index.model_dump(include={"kind", "nprobe"}),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "threads": settings.scoring.threads,
        "points": [asdict(point) for point in points],
        "advice": asdict(advice),
    }


def budget_of(settings: Settings) -> float:
    """Milliseconds that a scoring may take, waiting included."""
    return settings.budget.scoring_ms - settings.budget.fallback_ms


def measure(
    works: Sequence[Work],
    sizes: Sequence[int],
    rounds: int,
    run: Callable[[Sequence[Work]], Sequence[Scored]],
    clock: Callable[[], float] = time.perf_counter,
) -> list[Point]:
    """One point for each size: every round goes once over all works in whole batches of each size."""
    took: dict[int, list[tuple[float, float, float]]] = {size: [] for size in sizes}
    for size in sizes:
        run(works[:size])
    for _ in range(rounds):
        for size in sizes:
            for first in range(0, len(works) - size + 1, size):
                start = clock()
                scored = run(works[first : first + size])
                took[size].append(((clock() - start) * 1e3, scored[0].retrieve_ms, scored[0].rerank_ms))
    return [_point(size, np.array(took[size])) for size in sizes]


def _point(size: int, took: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> Point:
    whole, retrieve, rerank = took.T
    p50, p99 = np.percentile(whole, [50, 99])
    rate = 1e3 * size * len(whole) / whole.sum()
    figures = rate, p50, p99, np.median(retrieve), np.median(rerank)
    return Point(size, len(whole), *(round(float(figure), 3) for figure in figures))


def advise(points: Sequence[Point], budget_ms: float, pairs: int) -> Advice:
    """What the points say under the budget; `pairs` of one full scoring."""
    fits = [point for point in points if point.answered_ms <= budget_ms]
    if not fits:
        least = min(points, key=lambda point: point.size)
        return Advice(budget_ms, 0, least.size, max(1000, least.size * pairs), 1)
    best = max(point.per_second for point in fits)
    chosen = next(point for point in fits if point.per_second >= _ENOUGH * best)
    in_flight = math.floor(chosen.per_second * (budget_ms - chosen.p99_ms) / 1e3)
    return Advice(
        budget_ms,
        max(point.size for point in fits),
        chosen.size,
        max(1000, chosen.size * pairs),
        max(chosen.size, in_flight),
    )


def table(found: dict[str, Any]) -> Table:
    """The figures for a person."""
    advice = found["advice"]
    out = Table(
        "batch",
        "answers/s",
        "p50 ms",
        "p99 ms",
        "retrieve ms",
        "rerank ms",
        title=f"{found['items']:,} items, {found['index']['kind']}",
        caption=said(advice),
    )
    for point in found["points"]:
        figures = (point[name] for name in ("p50_ms", "p99_ms", "retrieve_ms", "rerank_ms"))
        out.add_row(str(point["size"]), f"{point['per_second']:.0f}", *(f"{figure:.2f}" for figure in figures))
    return out


def said(advice: dict[str, Any]) -> str:
    """The advice in words."""
    if not advice["largest"]:
        return f"No batch keeps {advice['budget_ms']:g} ms: lower the index's operating point, or raise budget.page_ms."
    return (
        f"Two batches of {advice['largest']} keep {advice['budget_ms']:g} ms at p99. "
        f"scoring.max_batch = {advice['max_batch']}, max_pairs = {advice['max_pairs']}, "
        f"max_in_flight = {advice['max_in_flight']}"
    )


def picture(found: dict[str, Any]) -> str:
    """One SVG file: throughput and latency by batch size."""
    points, advice = found["points"], found["advice"]
    rate = Line("full scorings", [(point["size"], point["per_second"]) for point in points])
    whole = Line("twice the p99 of a batch", [(point["size"], 2 * point["p99_ms"]) for point in points])
    half = Line("p50 of a batch", [(point["size"], point["p50_ms"]) for point in points], "second")
    bound = Line("budget", [(point["size"], advice["budget_ms"]) for point in points], "bad")
    plots = [
        lines([rate], "Throughput by batch size", "questions in a batch", "a second"),
        lines([whole, half, bound], "Time by batch size", "questions in a batch", "ms"),
    ]
    kind = "synthetic items" if found["synthetic"] else "items"
    notes = [f"{found['items']:,} {kind}, {found['index']['kind']}; {found['machine']}", said(advice)]
    return sheet("Batches on the compute thread", notes, plots)
