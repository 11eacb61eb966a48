"""What `feedline bench ann` compares: the index as the job chooses it, and plain lists of 8-bit codes, equally good.

The chosen one is tuned by some session vectors and measured on others. The reference is what is commonly taken,
IVF4096,SQ8 at four million items (lists grow with the root of the items), with the least nprobe that holds the same
floor on the same queries. n items, d numbers each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann.build import Candidate, build_indexes, write_index
from indexer.ann.filters import random_items, whole_lists
from indexer.ann.kinds import LISTS
from indexer.ann.metric import QueryMetric
from indexer.ann.partition import partition
from indexer.ann.trials import Trials
from indexer.ann.truth import exact_truth, recall
from indexer.ann.tune import choose, tune
from indexer.contract.ann_index import AnnIndex
from indexer.contract.features import Floats
from indexer.contract.items import Mask
from indexer.contract.manifest import IndexSpec
from indexer.contract.vector_file import Half
from indexer.progress import Stages
from indexer.settings import AnnSettings, IndexSettings

TUNED_BY = 256
ASKED = 512
QUERIES = TUNED_BY + ASKED + 2048
_LISTS_OF = 4096, 4_000_000
_NARROW = 64
_SHARES = (0.1, 0.01)


@dataclass(frozen=True, slots=True)
class Searched:
    """A catalogue: vectors float16 [n, d], a row of each distinct text int64 [t], session vectors float32 [q, d]: the
    first TUNED_BY to tune by, the next ASKED to ask, the rest for lists and codes to learn from."""

    vectors: Half
    first_rows: npt.NDArray[np.int64]
    queries: Floats
    synthetic: bool

    def first(self, items: int | None) -> Searched:
        """The first so many items (None: all), asked the same."""
        if items is None or items >= len(self.vectors):
            return self
        return replace(self, vectors=self.vectors[:items], first_rows=self.first_rows[self.first_rows < items])


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A filter: what it is called, its mask bool [n], and float32 [q]: the k-th exact score of each query asked."""

    name: str
    mask: Mask
    least: Floats
    k: int


@dataclass(frozen=True, slots=True)
class Compared:
    """Two indexes in files with their operating points, and what is to be asked of them."""

    searched: Searched
    index: Path
    spec: IndexSpec
    timed: list[dict[str, Any]]
    reference: Path
    reference_spec: IndexSpec
    asked: Floats
    recall_at_500: float
    filters: tuple[Narrowed, ...]
    seconds: dict[str, float]

    def facts(self) -> dict[str, Any]:
        """What to say beside the figures, JSON."""
        return {
            "distinct_texts": len(self.searched.first_rows),
            "synthetic": self.searched.synthetic,
            "timed": self.timed,
            "seconds": self.seconds,
        }


def compare(searched: Searched, settings: IndexSettings, folder: Path, stages: Stages) -> Compared:
    """Builds and tunes both in `folder`."""
    vectors, asked = searched.vectors, searched.queries[TUNED_BY : TUNED_BY + ASKED]
    typical = searched.queries[TUNED_BY + ASKED :]
    ann, threads, seed = settings.ann, settings.thread_count, settings.seed
    with stages.stage("index"):
        built = build_indexes(
            vectors,
            searched.first_rows,
            ann,
            folder,
            typical=typical,
            threads=threads,
            seed=seed,
            advance=lambda rows: None,
        )
    with stages.stage("tune"):
        tuned = tune(built, vectors, searched.queries[:TUNED_BY], ann, seed=seed)
    with stages.stage("reference"):
        reference, of_reference = _reference(searched, ann, folder, seed)
    with stages.stage("truth"):
        truth = exact_truth(vectors, asked)
        index = AnnIndex.load(tuned.file, vectors, tuned.spec)
        found = recall(index, vectors, truth, tuned.spec.point(1.0)).mean
        filters = _filters(index, vectors, asked, seed)
    return Compared(
        searched,
        tuned.file,
        tuned.spec,
        tuned.timed,
        reference,
        of_reference,
        asked,
        found,
        filters,
        stages.seconds,
    )


def _reference(searched: Searched, settings: AnnSettings, folder: Path, seed: int) -> tuple[Path, IndexSpec]:
    """IVF,SQ8 at the least nprobe that holds the floor; where its codes cannot, refined."""
    vectors, (lists, at) = searched.vectors, _LISTS_OF
    rows = searched.first_rows
    wanted = min(max(2, round(lists * (len(vectors) / at) ** 0.5)), max(2, len(rows) // 39))
    metric = QueryMetric.of(np.empty((0, vectors.shape[1]), np.float32), vectors.shape[1])
    parts = partition(vectors, rows, wanted, seed, lambda done: None, metric=metric)
    file = folder / "reference.faiss"
    write_index(LISTS["ivf_sq8"].build(parts, vectors, seed, lambda done: None), file)
    made = Candidate(f"ivf{wanted},sq8", "ivf_sq8", file)
    trials = Trials.of(made, vectors, exact_truth(vectors, searched.queries[:TUNED_BY]))
    trials.run(settings.recall_floor)
    best = choose(trials.tried, settings.recall_floor, settings.max_ms)
    spec = best.model_dump(include={"kind", "nprobe", "refine", "recall_at_500"})
    return file, IndexSpec.model_validate(spec)


def _filters(index: AnnIndex, vectors: Half, asked: Floats, seed: int) -> tuple[Narrowed, ...]:
    """Filters of items at random, and of whole lists at random, with exact answers of the first queries."""
    few = asked[:_NARROW]
    masks = {"100 %": np.ones(index.count, np.bool_)}
    for share in _SHARES:
        masks[f"{share:.0%} at random"] = random_items(index.count, share, seed + 1)
        if index.lists is not None:
            masks[f"{share:.0%} of one kind"] = whole_lists(index, share, seed + 1)
    out = []
    for name, mask in masks.items():
        truth = exact_truth(vectors, few, mask=None if mask.all() else mask)
        out.append(Narrowed(name, mask, truth.least, truth.k))
    return tuple(out)
