"""Writing snapshots: whole or not at all, whenever the process is killed.

Temporary folder, fsync of every file, manifest, fsync, rename, fsync of the parent, replace CURRENT, fsync.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from indexer.contract.manifest import MANIFEST, FileEntry, Manifest
from indexer.contract.seal import sealed
from indexer.contract.snapshot import (
    CURRENT,
    SnapshotError,
    checksum,
    current_id,
    lineage,
    open_snapshot,
    snapshot_ids,
)

KEEP = 3
_BUILDING = ".building-"
_LOCK = ".lock"


class Locked(SnapshotError):
    """Another build or rollback holds the lock of this folder; the message says who and since when."""


@contextmanager
def exclusive(root: Path, what: str) -> Iterator[None]:
    """Holds the one lock of `root` while writing to it. Raises Locked, naming the holder, when it is taken.

    The kernel frees the lock when its holder dies, however it dies.
    """
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode("utf-8", "replace").strip() or "an unknown process"
            raise Locked(f"{root} is being written by {holder}") from None
        since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        note = f"{what}, process {os.getpid()} on {socket.gethostname()}, since {since}\n"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, note.encode(), 0)
        yield
    finally:
        os.close(descriptor)


class SnapshotWriter:
    """A snapshot in the making: write files to `path(name)`, then `finish`. Leaving it unfinished removes it."""

    def __init__(self, root: Path, snapshot_id: str) -> None:
        self._root = root
        self._id = snapshot_id
        self._folder = root / f"{_BUILDING}{snapshot_id}"

    def __enter__(self) -> Self:
        for left_over in self._root.glob(f"{_BUILDING}*"):
            shutil.rmtree(left_over)
        self._folder.mkdir(parents=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def folder(self) -> Path:
        """Where the files are written."""
        return self._folder

    def path(self, name: str) -> Path:
        """Where to write the file `name`."""
        return self._folder / name

    def files(self) -> dict[str, FileEntry]:
        """Size and checksum of what was written so far."""
        return {path.name: checksum(path) for path in sorted(self._folder.iterdir()) if path.name != MANIFEST}

    def finish(self, manifest: Manifest) -> Path:
        """Makes the snapshot durable under its id. It is not served before `publish`."""
        for name in manifest.files:
            path = self._folder / name
            path.chmod(0o444)
            _fsync(path)
        _write_durably(self._folder / MANIFEST, sealed(manifest))
        _fsync(self._folder)
        final = self._root / self._id
        self._folder.rename(final)
        _fsync(self._root)
        return final


def publish(root: Path, snapshot_id: str, *, keep: int = KEEP) -> None:
    """Points CURRENT at a snapshot, atomically and durably, and removes the oldest ones beyond `keep`."""
    temporary = root / f".{CURRENT}.new"
    _write_durably(temporary, f"{snapshot_id}\n")
    temporary.replace(root / CURRENT)
    _fsync(root)
    _prune(root, snapshot_id, keep)


def rollback(root: Path, to: str | None = None) -> str:
    """Publishes the parent of the current snapshot, or the snapshot `to`, after verifying it whole; its id.

    Raises SnapshotError when there is nothing to go back to or the target is damaged; then nothing changes.
    """
    current = current_id(root)
    if current is None:
        raise SnapshotError(f"{root}: nothing is published, so there is nothing to roll back")
    ancestors = lineage(root, current)[1:]
    target = to or (ancestors[0] if ancestors else None)
    if target is None:
        raise SnapshotError(f"{root}: {current} has no parent that is still kept: nothing to roll back to")
    if target not in snapshot_ids(root):
        raise SnapshotError(f"{root}: {target!r} is not the id of a snapshot that is kept")
    open_snapshot(root / target).require_whole()
    publish(root, target, keep=len(snapshot_ids(root)))
    return target


def new_id(now: datetime, content: str) -> str:
    """An id that sorts by time: 20261130T204419Z-1a2b3c4d; `content` is a hex digest of what goes in."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{content[:8]}"


def _prune(root: Path, current: str, keep: int) -> None:
    """Keeps the current snapshot and its ancestors first, then the newest of the others."""
    ancestors = lineage(root, current)
    others = [name for name in reversed(snapshot_ids(root)) if name not in ancestors]
    for name in [*ancestors, *others][keep:]:
        shutil.rmtree(root / name)


def _write_durably(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: object) -> None:
    """Writes `value` as indented JSON; NaN and infinity are refused (ValueError)."""
    path.write_text(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")
