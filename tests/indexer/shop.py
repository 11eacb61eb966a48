"""User files of the three kinds, written as a user would, and a workspace to load them into."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.catalogue import load_catalogue
from indexer.events import Events, load_events
from indexer.quarantine import Quarantine
from indexer.settings import CatalogueSettings, EventSettings
from indexer.workspace import Workspace, workspace

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
KINDS = ("parquet", "csv", "jsonl")
Row = Mapping[str, Any]


def write(path: Path, rows: Sequence[Row], *, types: Mapping[str, pa.DataType] | None = None) -> Path:
    """Rows as Parquet, CSV or JSON Lines, by the suffix of `path`; a key that a row lacks is missing there."""
    fields = list(dict.fromkeys(key for row in rows for key in row))
    if path.suffix == ".parquet":
        columns = {
            field: pa.array([row.get(field) for row in rows], (types or {}).get(field), from_pandas=False)
            for field in fields
        }
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            out = csv.DictWriter(file, fields)
            out.writeheader()
            out.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@contextmanager
def scratch(root: Path) -> Iterator[Workspace]:
    """A small workspace below `root`."""
    root.mkdir(exist_ok=True)
    with workspace(root, threads=1, memory_limit_mb=512) as work:
        yield work


def load_items(work: Workspace, source: Path, settings: CatalogueSettings | None = None) -> Quarantine:
    """Loads a catalogue, letting every row be bad; the quarantine."""
    quarantine = Quarantine(work.folder.parent / "quarantine.jsonl")
    load_catalogue(work, source, settings or CatalogueSettings(max_bad_share=1), quarantine, lambda rows: None)
    return quarantine


def load_shopping(
    work: Workspace, source: Path, settings: EventSettings | None = None, *, until: datetime | None = None
) -> tuple[Events, Quarantine]:
    """Loads events, letting every row be bad."""
    quarantine = Quarantine(work.folder.parent / "quarantine.jsonl")
    settings = settings or EventSettings(max_bad_share=1)
    return load_events(work, source, settings, quarantine, lambda rows: None, now=NOW, until=until), quarantine


def quarantined(quarantine: Quarantine) -> list[tuple[int, str, str]]:
    """(row, field, reason) of what was written."""
    if quarantine.written is None:
        return []
    entries = [json.loads(line) for line in quarantine.path.read_text(encoding="utf-8").splitlines()]
    return [(entry["row"], entry["field"], entry["reason"]) for entry in entries]


def items_of(work: Workspace) -> list[dict[str, Any]]:
    """The table `items`, in row order."""
    rows: list[dict[str, Any]] = pa.table(work.sql.sql("select * from items order by row").to_arrow_table()).to_pylist()
    return rows


def plain_items(count: int) -> list[dict[str, Any]]:
    """Items "i0", "i1", ... with distinct titles in three categories."""
    return [
        {
            "item_id": f"i{row}",
            "title": f"thing {row}",
            "category": ("tea", "coffee", "cups")[row % 3],
            "price": float(1 + row % 10),
        }
        for row in range(count)
    ]


def plain_events(items: int, sessions: int, *, seed: int = 3) -> list[dict[str, Any]]:
    """Sessions over 60 days, four of five by one of 40 users: the next item is mostly the neighbour of the one before;
    a few items are popular."""
    random = np.random.default_rng(seed)
    start = NOW - timedelta(days=60)
    events = []
    for session in range(sessions):
        at = start + timedelta(days=60 * session / sessions)
        row = int(min(random.geometric(0.02), items) - 1)
        for step in range(int(random.integers(2, 7))):
            events.append(
                {
                    "event_id": f"e{session}-{step}",
                    "session_id": f"s{session}",
                    "user_id": f"u{session % 40}" if session % 5 else None,
                    "item_id": f"i{row}",
                    "type": ("view", "click", "cart", "purchase")[int(random.integers(4))],
                    "occurred_at": (at + timedelta(minutes=step)).isoformat(),
                    "region": ("north", "south")[session % 2],
                }
            )
            row = (row + 3 * int(random.integers(1, 3))) % items
    return events
