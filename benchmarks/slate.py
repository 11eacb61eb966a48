"""What each rule of the slate costs: NDCG@10 on given rankings, and time.

    python benchmarks/slate.py --snapshot FOLDER --rankings rankings.npz [--page 20] [--json]

`--snapshot`: items.parquet, id_index.npy and vectors.npy. `--rankings`, arrays of Q questions and C candidates: rows
int32 [Q, C], best first, -1 where nothing stands; scores float32 [Q, C]; positive bool [Q, C]; targets int64 [Q], how
many there are, found or not; users int32 [Q]. NDCG is of the first ten of a page. Times are the CPU time of one page
on one thread, with a reserve of 450 random rows behind the ranking.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fallback.ladder import Rung
from indexer.contract.blend import ANN
from indexer.contract.items import ItemTable, Rows
from indexer.contract.manifest import ID_INDEX, ITEMS, VECTORS
from indexer.learn.evaluate import PerQuestion, ndcg
from indexer.learn.intervals import Bootstrap
from services.feed.slate import Segment, build_slate
from services.feed.slate_rules import Diversity, Rules
from services.settings import Slate as SlateSettings

SEED = 7
RESERVE = 450
TIMED = 2000


@dataclass(frozen=True, slots=True)
class Rankings:
    """The arrays of `--rankings`."""

    rows: Rows
    scores: npt.NDArray[np.float32]
    positive: npt.NDArray[np.bool_]
    targets: npt.NDArray[np.int64]
    users: Rows

    @classmethod
    def load(cls, path: Path) -> Rankings:
        """Reads the file."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(*(arrays[name] for name in ("rows", "scores", "positive", "targets", "users")))

    def segments(self) -> Iterator[Segment]:
        """Each question's ranking."""
        for rows, scores in zip(self.rows, self.scores, strict=True):
            there = rows >= 0
            yield Segment(Rung.RANKED, rows[there], scores[there], np.full(there.sum(), ANN, np.uint8))


def rules() -> Iterator[tuple[str, Rules]]:
    """What is measured, by name."""
    yield "as ranked", Rules()
    yield "default settings", Rules(**SlateSettings().model_dump(exclude={"hide_bought"}))
    yield "equal text", Rules("text")
    for cosine in (0.999, 0.99, 0.98, 0.97):
        yield f"cosine >= {cosine}", Rules("vectors", cosine)
    for cosine in (0.99, 0.98, 0.97, 0.95):
        yield f"equal text and cosine >= {cosine}", Rules("both", cosine)
    for cap in (2, 3, 5):
        yield f"{cap} of a category", Rules(category_cap=cap)
    for cap in (2, 3, 5):
        yield f"{cap} of a brand", Rules(brand_cap=cap)
    for weight in (0.9, 0.7, 0.5):
        yield f"mmr {weight}", Rules(mmr=weight)


def measure(rankings: Rankings, by: Diversity, size: int) -> tuple[PerQuestion, PerQuestion]:
    """NDCG@10, and how many of the first ten are others than before; float64 [Q] each."""
    allowed = np.ones(len(by.variant), np.bool_)
    hit = np.zeros((len(rankings.rows), size), np.bool_)
    changed = np.zeros(len(rankings.rows))
    for at, segment in enumerate(rankings.segments()):
        page = build_slate([segment], eligible=allowed, hidden=[], size=size, diversity=by).rows
        hit[at, : len(page)] = np.isin(page, rankings.rows[at][rankings.positive[at]])
        changed[at] = len(np.setdiff1d(page[:10], segment.rows[:10]))
    return ndcg(hit, [np.empty(count, np.int32) for count in rankings.targets], 10), changed


def milliseconds(rankings: Rankings, by: Diversity, size: int) -> npt.NDArray[np.float64]:
    """Of TIMED pages."""
    allowed = np.ones(len(by.variant), np.bool_)
    random = np.random.default_rng(SEED)
    falling = np.linspace(1, 0, RESERVE, dtype=np.float32)
    given = []
    for segment in rankings.segments():
        others = random.choice(len(allowed), RESERVE, replace=False).astype(np.int32)
        given.append([segment, Segment(Rung.RANKED, others, falling, np.full(RESERVE, ANN, np.uint8))])
    out = []
    for at in range(TIMED):
        begun = time.thread_time()
        build_slate(given[at % len(given)], eligible=allowed, hidden=[], size=size, diversity=by)
        out.append((time.thread_time() - begun) * 1e3)
    return np.array(out)


def run(snapshot: Path, rankings: Rankings, size: int) -> dict[str, Any]:
    """The report, by rule."""
    items = ItemTable.load(snapshot / ITEMS, snapshot / ID_INDEX)
    vectors = np.load(snapshot / VECTORS, mmap_mode="r", allow_pickle=False)
    bootstrap = Bootstrap(rankings.users, seed=SEED)
    report: dict[str, Any] = {}
    ranked, _ = measure(rankings, Diversity.of(Rules(), items, vectors), size)
    for name, one in rules():
        by = Diversity.of(one, items, vectors)
        quality, changed = measure(rankings, by, size)
        p50, p99 = np.percentile(milliseconds(rankings, by, size), [50, 99])
        report[name] = {
            "ndcg_at_10": float(quality.mean()),
            "change": asdict(bootstrap.lift(quality, ranked)),
            "others_in_10": float(changed.mean()),
            "p50_ms": float(p50),
            "p99_ms": float(p99),
        }
    return report


def table(report: dict[str, Any]) -> str:
    """The report as a Markdown table."""
    lines = ["| | N@10 | change | other items in the first 10 | p50 / p99, ms |", "| --- " * 5 + "|"]
    for name, row in report.items():
        change = row["change"]
        interval = f"{change['mean']:+.2%} ({change['low']:+.2%} to {change['high']:+.2%})"
        times = f"{row['p50_ms']:.3f} / {row['p99_ms']:.3f}"
        lines.append(f"| {name} | {row['ndcg_at_10']:.4f} | {interval} | {row['others_in_10']:.2f} | {times} |")
    return "\n".join(lines)


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshot", type=Path, required=True)
    parser.add_argument("--rankings", type=Path, required=True)
    parser.add_argument("--page", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rankings = Rankings.load(arguments.rankings)
    report = run(arguments.snapshot, rankings, arguments.page)
    print(json.dumps(report) if arguments.json else f"{len(rankings.rows):,} questions\n\n{table(report)}")


if __name__ == "__main__":
    main()
