"""hnswlib, usearch and ScaNN, each built as its own guide says; the guides' addresses are in README.md."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from searching import Floats, Found, K, Searcher, Work

Options = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Build:
    """What is built, in which folder files may lie, and the recall that is aimed at; `threads` search batches."""

    work: Work
    folder: Path
    floor: float
    options: Options
    build_threads: int
    threads: int


@dataclass(frozen=True, slots=True)
class Built:
    """An index and the bounds of its effort."""

    searcher: Searcher
    least: int
    most: int


@dataclass(slots=True)
class _Hnswlib:
    index: Any
    bytes: int
    threads: int
    effort: int = 0

    def _at(self, effort: int) -> Any:
        if effort != self.effort:
            self.index.set_ef(effort)
            self.effort = effort
        return self.index

    def single(self, query: Floats, effort: int) -> Found:
        try:
            return np.asarray(self._at(effort).knn_query(query, K, num_threads=1)[0][0], np.int64)
        except RuntimeError:  # so it says that it found fewer than K: its graph falls apart where vectors are equal
            return np.empty(0, np.int64)

    def batch(self, queries: Floats, effort: int) -> Found:
        try:
            return np.asarray(self._at(effort).knn_query(queries, K, num_threads=self.threads)[0], np.int64)
        except RuntimeError:  # one query fails its batch: asked again one by one, as who serves it would
            found = np.full((len(queries), K), -1, np.int64)
            for at, query in enumerate(queries):
                rows = self.single(query, effort)
                found[at, : len(rows)] = rows
            return found


def hnswlib(build: Build) -> Built:
    """HNSW over float32. Options: m, ef_construction."""
    work, library = build.work, _imported("hnswlib")
    index = library.Index(space="ip", dim=work.vectors.shape[1])
    index.init_index(
        max_elements=len(work.vectors),
        M=int(build.options["m"]),
        ef_construction=int(build.options["ef_construction"]),
        random_seed=1,
    )
    for chunk in work.chunks():
        index.add_items(chunk, num_threads=build.build_threads)
    return Built(_Hnswlib(index, _saved(index.save_index), build.threads), K, 16 * K)


@dataclass(slots=True)
class _Usearch:
    index: Any
    bytes: int
    threads: int

    def single(self, query: Floats, effort: int) -> Found:
        self.index.expansion_search = effort
        return np.asarray(self.index.search(query, K, threads=1).keys, np.int64)

    def batch(self, queries: Floats, effort: int) -> Found:
        self.index.expansion_search = effort
        return np.asarray(self.index.search(queries, K, threads=self.threads).keys, np.int64)


def usearch(build: Build) -> Built:
    """HNSW over compact numbers. Options: dtype (f32, bf16, f16, i8), connectivity, expansion_add."""
    work, at = build.work, 0
    index = _imported("usearch.index").Index(
        ndim=work.vectors.shape[1],
        metric="ip",
        dtype=str(build.options["dtype"]),
        connectivity=int(build.options["connectivity"]),
        expansion_add=int(build.options["expansion_add"]),
        enable_key_lookups=False,
    )
    for chunk in work.chunks():
        index.add(np.arange(at, at + len(chunk), dtype=np.uint64), chunk, threads=build.build_threads)
        at += len(chunk)
    return Built(_Usearch(index, _saved(index.save), build.threads), K, 16 * K)


@dataclass(slots=True)
class _Scann:
    index: Any
    bytes: int
    reorder: int

    def single(self, query: Floats, effort: int) -> Found:
        return np.asarray(self.index.search(query, K, self.reorder, effort)[0], np.int64)

    def batch(self, queries: Floats, effort: int) -> Found:
        # Smaller pieces than the default 256, or a batch of BATCH stays with one thread.
        rows, _ = self.index.search_batched_parallel(queries, K, self.reorder, effort, batch_size=8)
        return np.asarray(rows, np.int64)


def scann(build: Build) -> Built:
    """Partitions, anisotropic hashing, reordering. Options: reorder (times K), soar (0, 1), leaves_per_1000.

    Leaves: the guide's square root of n, times leaves_per_1000 / 1000.
    """
    work, options = build.work, build.options
    reorder = int(options["reorder"]) * K
    leaves = max(1, round(int(options["leaves_per_1000"]) / 1000 * len(work.vectors) ** 0.5))
    vectors = np.concatenate(list(work.chunks()))
    builder = (
        _imported("scann.scann_ops.py.scann_ops_pybind")
        .builder(vectors, K, "dot_product")
        .set_n_training_threads(build.build_threads)
    )
    spilling = {"soar_lambda": 1.5, "overretrieve_factor": 2.0} if options["soar"] else {}
    builder = builder.tree(leaves, max(1, leaves // 10), training_sample_size=min(len(vectors), 250_000), **spilling)
    index = builder.score_ah(2, anisotropic_quantization_threshold=0.2).reorder(reorder).build()
    index.set_num_threads(build.threads)
    with tempfile.TemporaryDirectory() as folder:
        index.serialize(folder)
        size = _size(Path(folder))
    return Built(_Scann(index, size, reorder), 1, leaves)


def _imported(name: str) -> Any:
    """Each library is imported by the process that measures it."""
    return importlib.import_module(name)


def _saved(save: Callable[[str], object]) -> int:
    """Bytes of what `save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        save(f"{folder}/index")
        return _size(Path(folder))


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


LIBRARIES: dict[str, Callable[[Build], Built]] = {"hnswlib": hnswlib, "usearch": usearch, "scann": scann}
