"""Whether there is room for another snapshot: what it will take, by its manifest, and what this machine has left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from indexer.contract import manifest as files
from indexer.contract.manifest import Manifest
from indexer.contract.snapshot import SnapshotUnavailable

_TIMES = {
    files.ITEMS: 6,
    files.POPULAR: 12,
    files.ID_INDEX: 1,
    files.VECTORS: 1,
    files.INDEX: 1,
    files.NEIGHBOURS: 1,
    files.SIMILARITIES: 1,
    files.SESSION_TOWER: 4,
    files.RANKER: 4,
    files.STRONG_RANKER: 4,
}
"""What a loaded file takes of memory, in times of its size: columns that are read are compressed in their file and held
twice for a moment; what is mapped takes its size once it was asked for everywhere. Others are not loaded."""
_AN_ITEM = 24
"""Bytes that filters and masks take beside the files."""
_NO_LIMIT = 1 << 60
"""cgroup v1 says of no limit that it is a number near this one, or above."""


class NoRoom(SnapshotUnavailable):
    """This machine, or this process's share of it, has too little memory left for another snapshot."""


def needed_bytes(manifest: Manifest) -> int:
    """What loading and serving a snapshot takes, in bytes, about; on the safe side."""
    of_files = sum(_TIMES.get(name, 0) * entry.size for name, entry in manifest.files.items())
    return of_files + _AN_ITEM * manifest.items


def require_room(manifest: Manifest, available: int | None) -> None:
    """Raises NoRoom when the snapshot needs more than the `available` bytes; None: nobody knows, so it is tried."""
    needed = needed_bytes(manifest)
    if available is not None and needed > available:
        raise NoRoom(
            f"snapshot {manifest.id} refused: it takes about {_mib(needed)} MiB of memory beside the one that is "
            f"served, and {_mib(available)} MiB are left"
        )


def available_bytes(root: Path = Path("/")) -> int | None:
    """What this process may still take without swapping, in bytes: of the machine and of each cgroup that it is in.

    Files that the kernel keeps in memory count as room: it gives them up. None where the system (not Linux) does not
    tell. `root`: where /proc and /sys lie.
    """
    rooms = [*_of_machine(root), *_of_cgroups(root)]
    return min(rooms) if rooms else None


def _of_machine(root: Path) -> Iterator[int]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) << 10


def _of_cgroups(root: Path) -> Iterator[int]:
    """Of the process's own group and those above it; in a container, the topmost folder is the container's own."""
    top = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _rooms(top, path, "memory.max", "memory.current", ("active_file", "inactive_file"))
        elif "memory" in controllers.split(","):
            kept = ("total_active_file", "total_inactive_file")
            yield from _rooms(top / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", kept)


def _rooms(top: Path, path: str, limit: str, usage: str, kept: tuple[str, str]) -> Iterator[int]:
    own = top / path.strip("/")
    for folder in dict.fromkeys([top, own, *own.parents]):
        if not folder.is_relative_to(top):
            continue
        most, used = _number(folder / limit), _number(folder / usage)
        if most is None or used is None or most >= _NO_LIMIT:
            continue
        pairs = (line.split() for line in _lines(folder / "memory.stat"))
        yield max(0, most - used + sum(int(value) for name, value in pairs if name in kept))


def _number(path: Path) -> int | None:
    """None where there is no such file, and for the word "max"."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except OSError:
        return []


def _mib(size: int) -> int:
    return size >> 20
