"""The vectors and queries that all are measured on: given as files, or made of a synthetic catalogue or a snapshot."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from searching import Floats, Work, least_scores

from indexer.contract import manifest as files
from indexer.contract.features import make_context, query_vector
from indexer.contract.items import ItemTable
from indexer.contract.manifest import QuerySpec
from indexer.contract.snapshot import current_id, open_snapshot
from indexer.contract.sources import NOTHING
from indexer.contract.towers import tower_context
from services.feed.session_vectors import by_mean, by_tower

TUNE, ASK, TYPICAL, SEED = 500, 1000, 2000, 1
_VIEW = 2
_EVENTS = 2_000_000
"""The last rows of the events file, out of which sessions are taken."""
_ROWS = 65_536
_DIMENSION = 128
Vectors = npt.NDArray[np.float16]


def prepare(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Writes the work into `folder`; what was taken, in words and numbers. Raises SystemExit when inputs do not fit."""
    if options.vectors is not None:
        source, vectors, queries = str(options.vectors), _given(options.vectors), _given(options.queries)
    elif options.snapshots is not None:
        source, vectors, queries = _of_snapshot(options.snapshots, options.events)
    else:
        source, vectors, queries = _of_catalogue(options.catalogue, options.model, options.venv / "static", folder)
    if options.items:
        vectors = vectors[: options.items]
    queries = np.asarray(queries, np.float32)
    if queries.ndim != 2 or vectors.ndim != 2 or queries.shape[1] != vectors.shape[1] or len(queries) < TUNE + 100:
        wanted = f"at least {TUNE + 100} queries of {vectors.shape[-1]} numbers"
        raise SystemExit(f"{source}: vectors {vectors.shape} and queries {queries.shape}: {wanted} are expected")
    chosen = np.random.default_rng(SEED).permutation(len(queries))[: TUNE + ASK + TYPICAL]
    tune, ask, typical = np.split(queries[chosen], [TUNE, TUNE + ASK])
    vectors = np.asarray(vectors, np.float16)
    Work(vectors, tune, least_scores(vectors, tune), ask, least_scores(vectors, ask), typical).save(folder)
    lengths = np.linalg.norm(vectors[:_ROWS].astype(np.float32), axis=1)
    return {
        "source": source,
        "items": len(vectors),
        "dimension": vectors.shape[1],
        "queries": {"tuned_by": len(tune), "measured": len(ask), "learned_from": len(typical)},
        "vector_lengths": [round(float(length), 3) for length in (lengths.min(), lengths.max())],
    }


def _given(file: Path | None) -> npt.NDArray[np.floating]:
    if file is None:
        raise SystemExit("--queries: a file is expected beside --vectors")
    given: npt.NDArray[np.floating] = np.load(file, mmap_mode="r", allow_pickle=False)
    return given


def _of_snapshot(root: Path, events: Path | None) -> tuple[str, Vectors, Floats]:
    """Item vectors of the published snapshot; queries: its own session vectors of sessions of the events."""
    published = current_id(root)
    if published is None or events is None:
        raise SystemExit(f"{root}: a published snapshot is expected, and --events, the file it was built of")
    snapshot = open_snapshot(root / published)
    spec, path = snapshot.manifest.query, snapshot.path
    vectors: Vectors = np.load(path(files.VECTORS), mmap_mode="r", allow_pickle=False)
    items = ItemTable.load(path(files.ITEMS), path(files.ID_INDEX))
    contexts = [
        tower_context(make_context(rows, [_VIEW] * len(rows), spec.max_events), NOTHING, spec.places)
        for rows in (items.rows(session) for session in _sessions(events))
        if rows
    ]
    tower = spec.kind == "session_tower"
    encode = by_tower(path(files.SESSION_TOWER), vectors, 1) if tower else by_mean(vectors, spec)
    return f"snapshot {published}, {spec.kind}", vectors, np.concatenate([encode([each]) for each in contexts])


def _of_catalogue(folder: Path, model: str, kept: Path, work: Path) -> tuple[str, Vectors, Floats]:
    """Vectors of the texts by a static encoder distilled from `model`; queries: recency-weighted means of sessions.

    The distilled model stays in `kept`: the first run takes a minute longer.
    """
    from indexer.static_model import StaticModel, distilled  # noqa: PLC0415 - only this way in needs torch

    encoder = StaticModel(distilled(kept, Path(model), f"{Path(model).name}-{_DIMENSION}", _DIMENSION))
    table = pq.ParquetFile(folder / "catalogue.parquet")
    out = np.lib.format.open_memmap(work / "encoded.npy", "w+", np.float16, (table.metadata.num_rows, _DIMENSION))
    rows_of: dict[str, int] = {}
    for batch in table.iter_batches(_ROWS, columns=["item_id", "title", "category", "brand", "description"]):
        start, columns = len(rows_of), batch.to_pydict()
        rows_of.update((item, start + at) for at, item in enumerate(columns.pop("item_id")))
        texts = [". ".join(filter(None, parts)) for parts in zip(*columns.values(), strict=True)]
        encoded = encoder.encode(texts)
        out[start : start + len(texts)] = encoded / np.maximum(np.linalg.norm(encoded, axis=1, keepdims=True), 1e-9)
    spec = QuerySpec()
    contexts = [
        make_context(rows, [_VIEW] * len(rows), spec.max_events)
        for rows in ([rows_of[item] for item in session] for session in _sessions(folder / "events.parquet"))
    ]
    found = np.stack([query_vector(out, each, spec) for each in contexts])
    return f"synthetic catalogue {folder.name}, static encoder", out, found


def _sessions(events: Path) -> list[list[str]]:
    """Items of the last sessions of a file, newest first, without the one that came last: it would be looked for."""
    file, groups, rows = pq.ParquetFile(events), [], 0
    for at in reversed(range(file.num_row_groups)):
        groups.append(at)
        rows += file.metadata.row_group(at).num_rows
        if rows >= _EVENTS:
            break
    table = file.read_row_groups(sorted(groups), columns=["session_id", "item_id", "occurred_at"])
    table = table.sort_by([("session_id", "ascending"), ("occurred_at", "ascending")])
    sessions: dict[str, list[str]] = {}
    for session, item in zip(table["session_id"].to_pylist(), table["item_id"].to_pylist(), strict=True):
        sessions.setdefault(session, []).insert(0, item)
    known = [items[1:] for items in sessions.values() if len(items) > 1]
    chosen = np.random.default_rng(SEED).permutation(len(known))[: 2 * (TUNE + ASK)]
    return [known[at] for at in chosen]
