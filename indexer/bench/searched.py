"""A catalogue's vectors and session vectors, out of its Parquet files, as the job would make them of contents alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from indexer.bench.ann import QUERIES, TUNED_BY, Searched
from indexer.catalogue import load_catalogue
from indexer.contract.features import PURCHASE, Context, Floats, query_vector
from indexer.contract.vector_file import Half, map_vectors
from indexer.encoding import encode_items
from indexer.errors import InputError
from indexer.packaged_model import require_packaged_model
from indexer.progress import Stages
from indexer.quarantine import Quarantine
from indexer.row_counts import expected_rows
from indexer.settings import IndexSettings
from indexer.workspace import Workspace, workspace

_SESSIONS = """
select list(row order by moment desc) from (
    select session_id, row, max(occurred_at) as moment from read_parquet($file) join items using (item_id)
    group by session_id, row
) group by session_id having count(*) >= 2 order by hash(session_id), session_id limit $wanted
"""
_LONGEST = 5


def settings_of(given: dict[str, Any]) -> IndexSettings:
    """As given; where no encoder is, a static one of the packaged model: millions of texts would take MiniLM hours.
    Raises EncoderError."""
    without = {"encoder": {"kind": "static", "model": require_packaged_model()}}
    return IndexSettings.model_validate(without | given)


def read_searched(data: Path, folder: Path, settings: IndexSettings, stages: Stages) -> Searched:
    """Of `data`/catalogue.parquet and `data`/events.parquet, as `feedline bench catalogue` writes them; vectors go to
    `folder`. Raises InputError when a file is lacking or sessions are too few."""
    catalogue, events = data / "catalogue.parquet", data / "events.parquet"
    for file in (catalogue, events):
        if not file.is_file():
            raise InputError(f"{file}: no such file; feedline bench catalogue writes one")
    target = folder / "vectors.npy"
    with workspace(folder, threads=settings.thread_count, memory_limit_mb=settings.memory_limit_mb) as work:
        with stages.stage("catalogue", expected_rows(catalogue), "rows") as advance:
            quarantine = Quarantine(folder / "quarantine.jsonl")
            found = load_catalogue(work, catalogue, settings.catalogue, quarantine, advance)
        encoded = encode_items(
            work,
            stages,
            settings.encoder,
            settings.vector_store,
            target,
            items=found.items,
            texts=found.texts,
            threads=settings.thread_count,
        )
        vectors = map_vectors(target)
        with stages.stage("sessions"):
            queries = _queries(work, events, vectors, settings)
        synthetic = work.count("select count(*) from items where item_id like 'synthetic-%'") == found.items
    return Searched(vectors, encoded.first_rows, queries, synthetic)


def _queries(work: Workspace, events: Path, vectors: Half, settings: IndexSettings) -> Floats:
    """Vectors of sessions drawn by a hash of their ids: of 1 to 5 of their latest items."""
    wanted = {"file": str(events), "wanted": QUERIES}
    sessions = work.sql.execute(_SESSIONS, wanted).fetchall()
    if len(sessions) < 2 * TUNED_BY:
        raise InputError(f"{events}: {len(sessions)} sessions with two items, expected at least {2 * TUNED_BY}")
    random = np.random.default_rng(settings.seed)
    out = []
    for (rows,) in sessions:
        known = np.array(rows[: int(random.integers(1, _LONGEST + 1))], np.int32)
        context = Context(known, np.full(len(known), PURCHASE, np.uint8))
        out.append(query_vector(vectors, context, settings.query))
    return np.stack(out)
