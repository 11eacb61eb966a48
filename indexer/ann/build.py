"""Builds an index of each kind that is to be tried, one after the other, into files: one is in memory at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

from indexer.ann.kinds import LISTS, Lists, build_flat, build_graph, graph_bytes
from indexer.ann.metric import QueryMetric
from indexer.ann.partition import MakeFlat, list_count, partition
from indexer.contract.features import Floats
from indexer.contract.vector_file import Half
from indexer.progress import Advance
from indexer.settings import AnnSettings, KindName

FLAT = "flat"
_GRAPH = "hnsw"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An index in a file. `name` as in the manifest; `kind` as in the settings, or FLAT."""

    name: str
    kind: str
    file: Path

    @property
    def lists(self) -> Lists | None:
        """What is known of its kind, where it has inverted lists."""
        return LISTS.get(self.kind)

    @property
    def bytes(self) -> int:
        """Of the file, which is what it takes in memory."""
        return self.file.stat().st_size


def wanted_kinds(items: int, dimension: int, distinct: int, settings: AnnSettings) -> tuple[KindName, ...]:
    """The kinds to try for so many items; none: exact search, since there are few or their texts are alike.

    Kinds that would take more memory than `settings.memory_mb` are left out, unless none remained.
    """
    if items <= settings.flat_up_to or list_count(items, distinct) < 2:
        return ()
    size = {kind: each.bytes(items, dimension) for kind, each in LISTS.items()}
    size[_GRAPH] = graph_bytes(items, dimension)
    fitting = tuple(kind for kind in settings.kinds if size[kind] <= settings.memory_mb << 20)
    return fitting or (min(settings.kinds, key=size.__getitem__),)


def build_indexes(
    vectors: Half,
    first_rows: npt.NDArray[np.int64],
    settings: AnnSettings,
    folder: Path,
    *,
    typical: Floats,
    threads: int,
    seed: int,
    advance: Advance,
    make_flat: MakeFlat = faiss.IndexFlatL2,
) -> list[Candidate]:
    """Indexes of float16 [n, d] in row order, in `folder`. `first_rows` int64 [t]: a row of each distinct text.
    `typical` float32 [q, d]: queries that lists and codes are made for, others than those to tune by; may be none.

    `advance` is called with n rows for the lists and for each kind (`passes`). Raises GateFailed when a vector is not
    finite, OSError when a file cannot be written.
    """
    faiss.omp_set_num_threads(threads)
    items, dimension = vectors.shape
    kinds = wanted_kinds(items, dimension, len(first_rows), settings)
    if not kinds:
        return [_written(build_flat(vectors, advance), FLAT, FLAT, folder)]
    lists, metric = list_count(items, len(first_rows)), QueryMetric.of(typical, dimension)
    parts = partition(vectors, first_rows, lists, seed, advance, metric=metric, make_flat=make_flat)
    out = []
    for kind in kinds:
        made = LISTS.get(kind)
        if made is None:
            index, name = build_graph(parts, vectors, advance), f"{_GRAPH},sq8"
        else:
            index, name = made.build(parts, vectors, seed, advance), f"ivf{len(parts.centroids)},{made.name}"
        out.append(_written(index, name, kind, folder))
    return out


def passes(items: int, dimension: int, distinct: int, settings: AnnSettings) -> int:
    """How often `build_indexes` goes over all rows."""
    kinds = len(wanted_kinds(items, dimension, distinct, settings))
    return 1 + kinds


def write_index(index: faiss.Index, path: Path) -> None:
    """Writes the index as FAISS reads it. Raises OSError."""
    try:
        faiss.write_index(index, str(path))
    except RuntimeError as error:  # FAISS names its own source file first, the reason last
        raise OSError(f"{path}: cannot be written: {str(error).rsplit(': ', 1)[-1]}") from error


def _written(index: faiss.Index, name: str, kind: str, folder: Path) -> Candidate:
    file = folder / f"{kind}.faiss"
    write_index(index, file)
    return Candidate(name, kind, file)
