"""What a new snapshot follows: the published one, and an id after all others."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from indexer.contract.manifest import Manifest
from indexer.contract.publish import new_id
from indexer.contract.snapshot import SnapshotError, current_id, read_manifest, snapshot_ids


@dataclass(frozen=True, slots=True)
class Parent:
    """The published snapshot and its manifest; None where there is none, or where it cannot be read."""

    id: str | None
    manifest: Manifest | None
    folder: Path

    @property
    def items(self) -> int | None:
        """How many items it holds."""
        return self.manifest.items if self.manifest else None

    @property
    def last_event(self) -> datetime | None:
        """Time of the last event that it has learned from."""
        said = self.manifest.last_event if self.manifest else None
        return datetime.fromisoformat(said) if said else None


def find_parent(out: Path, note: Callable[[str], None]) -> Parent:
    """The published snapshot of `out`; damage to it must not stop the build that replaces it, and is noted."""
    identity = None
    try:
        identity = current_id(out)
        manifest = read_manifest(out / identity) if identity else None
        return Parent(identity, manifest, out / (identity or ""))
    except SnapshotError as error:
        note(f"the parent cannot be read, so neither its items nor its ranking is a gate: {error}")
        return Parent(identity, None, out)


def next_id(out: Path, now: datetime, content: str) -> str:
    """An id that sorts after all that are in `out`, whatever the clock says; `content` is what makes this build."""
    newest = max(snapshot_ids(out), default="")
    if newest:
        last = datetime.strptime(newest[:16], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        now = max(now, last + timedelta(seconds=1))
    return new_id(now, hashlib.blake2b(f"{content} {now.isoformat()}".encode(), digest_size=4).hexdigest())
