"""`feedline bench ann`: the service's retrieval beside FAISS called directly, and beside plain lists of 8-bit codes.

Whatever is compared takes turns, query by query or round by round, so that noise meets all alike. Wall time is what a
shopper waits; processor time is told beside it, since other work on the machine lengthens the first and not the second.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from rich.table import Table

from indexer.contract.features import Floats
from indexer.contract.items import Mask
from indexer.contract.manifest import IndexSpec
from indexer.contract.plots import Spot, plane, sheet
from indexer.contract.vector_file import Half, half_index
from services.feed.retrieval import Retriever

K = 500
BATCHES = (16, 32)
_SAME_SCORE = 1e-6
Search = Callable[[Floats], Any]


@dataclass(frozen=True, slots=True)
class Served:
    """An index in a file at its operating point, over vectors float16 [n, d]."""

    file: Path
    spec: IndexSpec
    vectors: Half

    def retriever(self, threads: int, *, exact_below: int = 0) -> Retriever:
        """As the service has it."""
        return Retriever.load(self.file, self.vectors, index_spec=self.spec, exact_below=exact_below, threads=threads)

    def raw(self) -> Search:
        """FAISS at the same setting, with nothing of ours around it."""
        index = faiss.read_index(str(self.file))
        parameters: Any = faiss.SearchParameters()
        if self.spec.kind.startswith("hnsw"):
            parameters = faiss.SearchParametersHNSW()  # type: ignore[attr-defined]
            parameters.efSearch = self.spec.nprobe
        elif self.spec.nprobe:
            parameters = faiss.SearchParametersIVF()
            parameters.nprobe = self.spec.nprobe
        if not self.spec.refine:
            return lambda queries: index.search(queries, K, params=parameters)
        exact = half_index(self.vectors)
        refined, outer = faiss.IndexRefine(index, exact), faiss.IndexRefineSearchParameters()
        outer.k_factor, outer.base_index_params = self.spec.refine, parameters
        return lambda queries: refined.search(queries, K, params=outer)


def singles(ours: Search, raw: Search, queries: Floats) -> dict[str, float]:
    """Percentiles of one query at a time, by one thread: ours, and FAISS alone; wall and processor time."""
    took = np.empty((2, 2, len(queries)))
    faiss.omp_set_num_threads(1)
    for turn in range(-8, len(queries)):
        query = queries[turn % len(queries)][None]
        for at, search in enumerate((ours, raw) if turn % 2 else (raw, ours)):
            wall, processor = time.perf_counter(), time.thread_time()
            search(query)
            if turn >= 0:
                spent = time.perf_counter() - wall, time.thread_time() - processor
                took[at if turn % 2 else 1 - at, :, turn] = spent
    names = ("p50_ms", "p99_ms"), ("cpu_p50_ms", "cpu_p99_ms")
    return {
        f"{whose}{name}": round(1e3 * float(np.percentile(took[at, clock], share)), 3)
        for at, whose in enumerate(("", "raw_"))
        for clock in (0, 1)
        for name, share in zip(names[clock], (50, 99), strict=True)
    }


def batches(ours: Search, reference: Search, queries: Floats, size: int, rounds: int) -> dict[str, Any]:
    """Queries a second of both, rounds in turn: median, least and most; and a second of processor time."""
    rates: list[list[tuple[float, float]]] = [[], []]
    for turn in range(rounds + 1):
        for at, search in enumerate((ours, reference)):
            wall, processor = time.perf_counter(), time.process_time()
            for start in range(0, len(queries) - size + 1, size):
                search(queries[start : start + size])
            asked = len(queries) // size * size
            if turn:
                spent = time.perf_counter() - wall, time.process_time() - processor
                rates[at].append((asked / spent[0], asked / spent[1]))
    mine, theirs = (np.array(each) for each in rates)
    return {
        "batch": size,
        "qps": _spread(mine[:, 0]),
        "reference_qps": _spread(theirs[:, 0]),
        "ratio": _spread(mine[:, 0] / theirs[:, 0]),
        "queries_a_cpu_second": _spread(mine[:, 1]),
        "reference_queries_a_cpu_second": _spread(theirs[:, 1]),
        "cpu_ratio": _spread(mine[:, 1] / theirs[:, 1]),
    }


def narrowed(
    retriever: Retriever, name: str, mask: Mask, queries: Floats, vectors: Half, least: Floats, k: int
) -> dict[str, Any]:
    """Recall and percentiles of single queries under a filter; preparing it, once, is told apart."""
    start = time.perf_counter()
    retriever.search(queries[:1], mask, k)
    first = time.perf_counter() - start
    took, hits = [], 0
    for query, bound in zip(queries[: len(least)], least, strict=True):
        start, processor = time.perf_counter(), time.thread_time()
        ((rows, _),) = retriever.search(query[None], mask, k)
        took.append((time.perf_counter() - start, time.thread_time() - processor))
        hits += int(np.count_nonzero(vectors[rows].astype(np.float32) @ query >= bound - _SAME_SCORE))
    wall, processor_times = (1e3 * np.array(each) for each in zip(*took, strict=True))
    return {
        "filter": name,
        "items": int(np.count_nonzero(mask)),
        "recall_at_500": round(hits / (k * len(least)), 4),
        "p50_ms": round(float(np.median(wall)), 3),
        "p99_ms": round(float(np.percentile(wall, 99)), 3),
        "cpu_p50_ms": round(float(np.median(processor_times)), 3),
        "cpu_p99_ms": round(float(np.percentile(processor_times, 99)), 3),
        "first_ms": round(1e3 * first, 3),
    }


def measure(
    served: Served,
    reference: Served,
    queries: Floats,
    filters: Sequence[tuple[str, Mask, Floats, int]],
    *,
    threads: int,
    rounds: int,
    exact_below: int,
) -> dict[str, Any]:
    """All figures of one run. `filters`: name, mask, the k-th exact score of the first queries, and k."""
    everything = np.ones(len(served.vectors), np.bool_)
    one, many = served.retriever(1), served.retriever(threads)
    theirs = reference.retriever(threads)
    alone = singles(lambda query: one.search(query, everything, K), served.raw(), queries)
    by_size = [
        batches(
            lambda some: many.search(some, everything, K),
            lambda some: theirs.search(some, everything, K),
            queries,
            size,
            rounds,
        )
        for size in BATCHES
    ]
    filtering = served.retriever(1, exact_below=exact_below)
    best = by_size[-1]
    return {
        **alone,
        "batched_qps": best["qps"]["median"],
        "reference_batched_qps": best["reference_qps"]["median"],
        "batches": by_size,
        "filters": [
            narrowed(filtering, name, mask, queries, served.vectors, least, k) for name, mask, least, k in filters
        ],
        "threads": threads,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, FAISS {faiss.__version__}",
        "load_average": round(os.getloadavg()[0], 1),
    }


def figures(
    served: Served, reference: Served, recall: float, measured: dict[str, Any], more: dict[str, Any]
) -> dict[str, Any]:
    """What `feedline bench ann` says, JSON: the figures that are asked for first, then what they rest on."""
    names = ("p50_ms", "p99_ms", "raw_p50_ms", "raw_p99_ms", "batched_qps", "reference_batched_qps")
    point = served.spec.model_dump(mode="json", exclude={"table"})
    first = {"recall_at_500": recall, **{name: measured[name] for name in names}}
    return {
        **first,
        "index_bytes": served.file.stat().st_size,
        "operating_point": point,
        **{name: value for name, value in measured.items() if name not in names},
        "reference": reference.spec.model_dump(mode="json", include={"kind", "nprobe", "refine", "recall_at_500"}),
        "reference_bytes": reference.file.stat().st_size,
        "items": len(served.vectors),
        "dimension": served.vectors.shape[1],
        "table": [point.model_dump(mode="json") for point in served.spec.table],
        **more,
    }


def one_row(found: dict[str, Any]) -> Table:
    """The figures for a person."""
    table = Table("", "", title=f"{found['items']:,} items{', synthetic' if found['synthetic'] else ''}")
    point = found["operating_point"]
    table.add_row("chosen", f"{point['kind']}, nprobe {point['nprobe']}, refine {point['refine']:g}")
    table.add_row("recall@500", f"{found['recall_at_500']:.4f}")
    table.add_row("one query", f"p50 {found['p50_ms']:.2f} ms, p99 {found['p99_ms']:.2f} ms")
    table.add_row("FAISS alone", f"p50 {found['raw_p50_ms']:.2f} ms, p99 {found['raw_p99_ms']:.2f} ms")
    for each in found["batches"]:
        mine, theirs = each["qps"]["median"], each["reference_qps"]["median"]
        table.add_row(f"batches of {each['batch']}", f"{mine:.0f} / s; {found['reference']['kind']}: {theirs:.0f} / s")
    for each in found["filters"]:
        table.add_row(each["filter"], f"recall {each['recall_at_500']:.3f}, p99 {each['p99_ms']:.2f} ms")
    table.add_row("index", f"{found['index_bytes'] / 2**20:.0f} MiB")
    return table


def picture(found: dict[str, Any]) -> str:
    """Recall against latency, as counted, of every point that was tried; an SVG document."""
    chosen = found["operating_point"]
    best = chosen["kind"], chosen["nprobe"], chosen["refine"]
    spots = [
        Spot("", each["ms"], each["recall_at_500"], each["recall_at_500"], each["recall_at_500"])
        for each in found["table"]
    ]
    for each in found["table"]:
        if (each["kind"], each["nprobe"], each["refine"]) == best:
            recall = each["recall_at_500"]
            spots.append(Spot(f"{best[0]}, nprobe {best[1]}", each["ms"], recall, recall, recall, ours=True))
    title = f"recall@500 against milliseconds, {found['items']:,} items"
    return sheet(title, ["milliseconds as counted: see indexer/ann/cost.py"], [plane(spots, title, "ms", "recall@500")])


def _spread(values: Floats) -> dict[str, float]:
    return {
        "median": round(float(np.median(values)), 2),
        "least": round(float(values.min()), 2),
        "most": round(float(values.max()), 2),
    }
