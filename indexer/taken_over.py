"""Nothing that the models depend on has changed: then the parent's are taken over, and the night is short."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from indexer.contract import manifest as names
from indexer.contract.manifest import Manifest
from indexer.contract.publish import SnapshotWriter
from indexer.contract.snapshot import SnapshotError, open_snapshot
from indexer.learn import CODE
from indexer.settings import IndexSettings
from indexer.workspace import Workspace

_FILES = (
    names.VECTORS,
    names.INDEX,
    names.NEIGHBOURS,
    names.SIMILARITIES,
    names.SESSION_TOWER,
    names.RANKER,
    names.STRONG_RANKER,
    names.TEACHER_SCORES,
)
_DIGEST = """
select (select count(*) from events), (select coalesce(sum(hash(row, type, session, user, moment)), 0) from events),
    (select count(*) from items),
    (select coalesce(sum(hash(row, item_id, category, price, content)), 0) from items join texts using (text_no))
"""
"""Sums of 64-bit hashes, in 128 bits: the order in which threads add up does not matter."""


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The parent's manifest, and what its report says of how its models were made."""

    manifest: Manifest
    learning: dict[str, Any]


def digest_of(work: Workspace, settings: IndexSettings, encoder: str) -> str:
    """What the models are learned from: events, items, encoder, settings and the code's own version, in hex."""
    (counts,) = work.sql.execute(_DIGEST).fetchall()
    told = settings.model_dump(mode="json", include={"popularity", "query", "ann", "learn", "ranker", "seed"})
    text = f"{CODE}:{':'.join(map(str, counts))}:{encoder}:{json.dumps(told, sort_keys=True)}"
    return blake2b(text.encode(), digest_size=16).hexdigest()


def take_over(
    parent: Path | None, digest: str, writer: SnapshotWriter, note: Callable[[str], None]
) -> TakenOver | None:
    """Links the models of the snapshot in `parent` into the new one when they were learned from the same; None when
    they were not, or, with a note, when the parent is not whole."""
    if parent is None:
        return None
    try:
        snapshot = open_snapshot(parent)
        if snapshot.manifest.learned_from != digest:
            return None
        snapshot.require_whole()
        learning = json.loads(snapshot.path(names.REPORT).read_bytes())["learning"]
    except (SnapshotError, ValueError, KeyError) as error:
        note(f"models: everything is learned again, the parent's cannot be taken over: {error}")
        return None
    for name in _FILES:
        if snapshot.has(name):
            _link(snapshot.path(name), writer.path(name))
    return TakenOver(snapshot.manifest, learning)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # not every file system has links; a full disk is met again by the copy
        shutil.copyfile(source, target)
