"""Feedline's index as the nightly job builds and tunes it, asked through the service's Retriever."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from peers import Build, Built
from searching import Floats, Found, K

from indexer.ann.build import build_indexes
from indexer.ann.tune import tune
from indexer.contract.vector_file import map_vectors
from indexer.settings import AnnSettings
from services.feed.retrieval import Retriever


@dataclass(slots=True)
class _Feedline:
    one: Retriever
    many: Retriever
    everything: npt.NDArray[np.bool_]
    bytes: int
    vector_bytes: int
    point: str

    def single(self, query: Floats, effort: int) -> Found:
        return self.one.search(query[None], self.everything, K)[0][0]

    def batch(self, queries: Floats, effort: int) -> Found:
        found = self.many.search(queries, self.everything, K)
        rows = np.full((len(queries), K), -1, np.int32)
        for at, (each, _) in enumerate(found):
            rows[at, : len(each)] = each
        return rows


def feedline(build: Build) -> Built:
    """The operating point is the job's own choice on the queries to tune by: the effort says nothing here.

    What it refines by are the snapshot's vectors, which the ranker reads, too: `vector_bytes`, beside the index.
    """
    vectors = map_vectors(build.folder / "vectors.npy")
    settings = AnnSettings(recall_floor=build.floor)
    candidates = build_indexes(
        vectors,
        np.arange(len(vectors)),
        settings,
        build.folder,
        typical=build.work.typical,
        threads=build.build_threads,
        seed=1,
        advance=lambda count: None,
    )
    tuned = tune(candidates, vectors, build.work.tune, settings, seed=1)
    spec = tuned.spec
    one, many = (
        Retriever.load(tuned.file, vectors, index_spec=spec, exact_below=0, threads=threads)
        for threads in (1, build.threads)
    )
    point = f"{spec.kind}, nprobe {spec.nprobe}" + (f", refine {spec.refine:g}" if spec.refine else "")
    size, beside = tuned.file.stat().st_size, vectors.nbytes if spec.refine else 0
    return Built(_Feedline(one, many, np.ones(len(vectors), np.bool_), size, beside, point), 0, 0)
