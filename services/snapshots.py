"""`feedline index list` and `verify`: what is kept, and whether it can be served."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from indexer.contract.snapshot import SnapshotError, current_id, open_snapshot, read_manifest, snapshot_ids
from services.feed.loading import Loader


def describe(root: Path) -> list[dict[str, Any]]:
    """One entry per snapshot, newest first. A manifest that cannot be read is said, not raised.

    Raises SnapshotError when there is no such folder, or when CURRENT cannot be read.
    """
    if not root.is_dir():
        raise SnapshotError(f"{root}: no such folder")
    current = current_id(root)
    rows: list[dict[str, Any]] = []
    for name in reversed(snapshot_ids(root)):
        row: dict[str, Any] = {"id": name, "current": name == current}
        try:
            manifest = read_manifest(root / name)
        except SnapshotError as error:
            row["error"] = str(error)
        else:
            row |= {
                "created_at": manifest.created_at,
                "parent": manifest.parent,
                "items": manifest.items,
                "index": manifest.index.kind,
                "recall_at_500": manifest.index.recall_at_500,
                "ranker": manifest.ranker.id,
                "bytes": sum(entry.size for entry in manifest.files.values()),
            }
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    """The entries of `describe` for a person."""
    out = Table("", Column("snapshot", no_wrap=True), "items", "index", "recall", "ranker", "MB")
    for row in rows:
        mark = "->" if row["current"] else ""
        if "error" in row:
            out.add_row(mark, row["id"], Text(row["error"]))
            continue
        out.add_row(
            mark,
            row["id"],
            f"{row['items']:,}",
            row["index"],
            f"{row['recall_at_500']:.3f}",
            row["ranker"],
            f"{row['bytes'] / 1e6:.1f}",
        )
    return out


def verify(root: Path, snapshot_id: str) -> str:
    """One line that says the snapshot is whole. Raises SnapshotError naming what is not."""
    name = snapshot_id or current_id(root)
    if name is None:
        raise SnapshotError(f"{root}: nothing is published")
    snapshot = open_snapshot(root / name)
    loaded = Loader(exact_below=0, threads=1, cascade=1.0).load(snapshot, whole=True)
    return (
        f"{name}: {len(snapshot.manifest.files)} files whole, {loaded.items.count:,} items, "
        f"{len(snapshot.manifest.golden)} golden queries answered as when built"
    )
