"""What the current snapshot is asked: its vectors, and session vectors of sessions among its items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.contract.features import Floats
from indexer.contract.manifest import VECTORS
from indexer.contract.snapshot import SnapshotError, current_id, open_snapshot
from indexer.contract.sources import NOTHING
from indexer.contract.towers import tower_context
from indexer.contract.vector_file import Half, map_vectors
from services.bench.questions import questions
from services.errors import StartError
from services.feed.loading import Loader


def asked_of(root: Path, count: int) -> tuple[Half, npt.NDArray[np.int64], Floats, bool]:
    """Vectors float16 [n, d], a row of each distinct text int64 [t], session vectors float32 [count, d], and whether
    the catalogue is a synthetic one. Raises SnapshotError, StartError."""
    name = current_id(root)
    if name is None:
        raise SnapshotError(f"{root}: nothing is published")
    snapshot = open_snapshot(root / name)
    loaded = Loader(exact_below=0, threads=1).load(snapshot, whole=True)
    if loaded.encode is None:
        raise StartError(f"snapshot {name}: it has no session vectors")
    places = loaded.manifest.query.places
    queries = loaded.encode([tower_context(each.context, NOTHING, places) for each in questions(loaded, count)])
    _, first = np.unique(loaded.items.variant, return_index=True)
    synthetic = loaded.items.item_id(0).startswith("synthetic")
    return map_vectors(snapshot.path(VECTORS)), np.sort(first), queries, synthetic
