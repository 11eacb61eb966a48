"""Reading snapshots: what may be trusted in a folder, before FAISS or ONNX Runtime sees a byte of it."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from indexer.contract.manifest import ID_PATTERN, MANIFEST, REQUIRED, FileEntry, Manifest
from indexer.contract.seal import is_sealed

CURRENT = "CURRENT"
_CHUNK = 1 << 20


class SnapshotError(Exception):
    """A snapshot, or one file of it, is not what its manifest says. The message names it."""


class SnapshotUnavailable(SnapshotError):
    """A snapshot cannot be had now, for a reason that may pass: a file that is not there yet or cannot be read, too
    little memory. Whoever wants it may try again."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A folder whose manifest was read; `faults` names the files that may not be used, and why; `unread` those of them
    that are missing or could not be read, which may pass."""

    folder: Path
    manifest: Manifest
    faults: dict[str, str]
    unread: frozenset[str] = frozenset()

    @property
    def id(self) -> str:
        """The snapshot's id; ids sort by time of building."""
        return self.manifest.id

    def path(self, name: str) -> Path:
        """The path of a verified file. Raises SnapshotError naming the fault of one that is not."""
        if name in self.faults:
            raise SnapshotError(f"snapshot {self.id}: {name}: {self.faults[name]}")
        if name not in self.manifest.files:
            raise SnapshotError(f"snapshot {self.id}: {name}: not in the manifest")
        return self.folder / name

    def has(self, name: str) -> bool:
        """Whether the file is in the manifest and verified."""
        return name in self.manifest.files and name not in self.faults

    def require_whole(self) -> Snapshot:
        """Itself, or SnapshotError naming every file at fault; SnapshotUnavailable where all of that may pass."""
        if self.faults:
            detail = "; ".join(f"{name}: {fault}" for name, fault in sorted(self.faults.items()))
            kind = SnapshotUnavailable if self.faults.keys() <= self.unread else SnapshotError
            raise kind(f"snapshot {self.id} refused: {detail}")
        return self

    @property
    def servable(self) -> bool:
        """Whether at least the popularity list can be served."""
        return all(self.has(name) for name in REQUIRED)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the snapshot in `folder`. Raises SnapshotError naming what is wrong with it, SnapshotUnavailable
    when it cannot be read."""
    path = folder / MANIFEST
    try:
        if path.is_symlink():
            raise SnapshotError(f"snapshot {folder.name}: {MANIFEST}: is a link")
        text = path.read_bytes()
        manifest = Manifest.model_validate_json(text)
    except OSError as error:
        raise SnapshotUnavailable(f"snapshot {folder.name}: {MANIFEST}: {error.strerror or error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise SnapshotError(f"snapshot {folder.name}: {MANIFEST}: {where}: {first['msg']}") from error
    if manifest.id != folder.name:
        raise SnapshotError(f"snapshot {folder.name}: {MANIFEST}: id: is {manifest.id}, not the folder's name")
    if not is_sealed(manifest, text):
        raise SnapshotError(f"snapshot {folder.name}: {MANIFEST}: seal: it was changed after it was written")
    return manifest


def open_snapshot(folder: Path) -> Snapshot:
    """Reads the manifest and checks every file's kind, size and sha256. Files at fault are in `faults`, not raised.

    Raises SnapshotError when the manifest itself cannot be trusted, SnapshotUnavailable when it cannot be read.
    """
    try:
        if folder.is_symlink():
            raise SnapshotError(f"snapshot {folder.name}: a link")
        if not folder.is_dir():
            raise SnapshotUnavailable(f"snapshot {folder.name}: no such folder")
    except OSError as error:
        raise SnapshotUnavailable(f"snapshot {folder.name}: {error.strerror or error}") from error
    manifest = read_manifest(folder)
    faults, unread = {}, set()
    for name, entry in manifest.files.items():
        try:
            fault = _fault(folder, name, entry)
        except OSError as error:
            fault = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            unread.add(name)
        if fault:
            faults[name] = fault
    for name in REQUIRED:
        if name not in manifest.files:
            faults[name] = "not in the manifest"
    return Snapshot(folder, manifest, faults, frozenset(unread))


def checksum(path: Path) -> FileEntry:
    """Size in bytes and sha256 of a file, read in a stream."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return FileEntry(size=size, sha256=digest.hexdigest())


def current_id(root: Path) -> str | None:
    """The id that CURRENT names; None when nothing was published. Raises SnapshotError when it cannot be read."""
    try:
        text = (root / CURRENT).read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SnapshotError(f"{CURRENT}: {error}") from error
    name = text.removesuffix("\n")
    if not _is_id(name):
        raise SnapshotError(f"{CURRENT}: {name!r:.80} is not the id of a snapshot")
    return name


def snapshot_ids(root: Path) -> list[str]:
    """Ids of the snapshots under `root`, oldest first; folders still being written are not among them."""
    if not root.is_dir():
        return []
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and _is_id(entry.name))


def lineage(root: Path, snapshot_id: str) -> list[str]:
    """`snapshot_id`, its parent, its grandparent, as far as they are kept.

    Where a manifest is unreadable or its parent gone, the newest older snapshot takes the parent's place.
    """
    kept = snapshot_ids(root)
    line = [snapshot_id]
    while True:
        older = [name for name in kept if name < line[-1]]
        try:
            parent = read_manifest(root / line[-1]).parent
        except SnapshotError:
            parent = None
        if parent not in older:
            parent = older[-1] if older else None
        if parent is None:
            return line
        line.append(parent)


def _is_id(name: str) -> bool:
    return re.fullmatch(ID_PATTERN, name) is not None


def _fault(folder: Path, name: str, entry: FileEntry) -> str:
    """What is wrong with the file; empty: nothing. Raises OSError when it is missing or cannot be read."""
    path = folder / name
    if path.parent != folder or name in {"", ".", ".."} or "\0" in name:
        return "is not a plain file name"
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if status.st_size != entry.size:
        return f"has {status.st_size} bytes, the manifest says {entry.size}"
    return "" if checksum(path).sha256 == entry.sha256 else "its sha256 is not the manifest's"
