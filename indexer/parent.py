"""What a new snapshot follows: the published one, and an id after all others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from indexer.contract.publish import new_id
from indexer.contract.snapshot import SnapshotError, current_id, read_manifest, snapshot_ids


@dataclass(frozen=True, slots=True)
class Parent:
    """The published snapshot and the number of its items; None where there is none, or where it cannot be told."""

    id: str | None
    items: int | None


def find_parent(out: Path, note: Callable[[str], None]) -> Parent:
    """The published snapshot of `out`; damage to it must not stop the build that replaces it, and is noted."""
    identity = None
    try:
        identity = current_id(out)
        return Parent(identity, read_manifest(out / identity).items if identity else None)
    except SnapshotError as error:
        note(f"the parent cannot be read, so its number of items is no gate: {error}")
        return Parent(identity, None)


def next_id(out: Path, now: datetime, content: str) -> str:
    """An id that sorts after all that are in `out`, whatever the clock says; `content` is what makes this build."""
    newest = max(snapshot_ids(out), default="")
    if newest:
        last = datetime.strptime(newest[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        now = max(now, last + timedelta(seconds=1))
    return new_id(now, hashlib.blake2b(f"{content} {now.isoformat()}".encode(), digest_size=4).hexdigest())
