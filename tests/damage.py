"""What happens to snapshots: files that change behind the manifest's back, and builders that wrote nonsense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from indexer.contract.manifest import MANIFEST
from indexer.contract.seal import seal_of
from indexer.contract.snapshot import checksum


def rewrite_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Lets `change` edit the manifest's JSON, and seals it again."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    change(manifest)
    manifest["seal"] = seal_of(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")


def replace_file(folder: Path, name: str, data: bytes) -> None:
    """Puts `data` in place of a file and its checksum into the manifest: what a faulty builder would have left."""
    (folder / name).unlink()
    (folder / name).write_bytes(data)
    entry = checksum(folder / name).model_dump()
    rewrite_manifest(folder, lambda manifest: manifest["files"].update({name: entry}))


def flip_byte(path: Path, at: int = -1) -> None:
    """Changes one byte; the size stays."""
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.unlink()
    path.write_bytes(data)
