"""The disk is full, or may not be written to, while a snapshot is built: an error, and the old one stays."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from indexer.contract.snapshot import current_id, open_snapshot, snapshot_ids
from indexer.vector_store import VectorStore
from services.feed.loading import Loader
from tests.faults.nightly import ENCODER, id_of, run_night
from tests.snapshots import Shop, publish_shop

SHOP = Shop(count=200)
PAGE = 4096


@contextmanager
def _mounted(folder: Path, size_kb: int) -> Iterator[Path]:
    """A file system of its own, in memory; skipped where mounting is not allowed."""
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mounting, check=False, capture_output=True).returncode != 0:
        pytest.skip("a small file system of its own needs root, and the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _require_old(root: Path, old: str) -> None:
    assert current_id(root) == old
    Loader(exact_below=0, threads=1).load(open_snapshot(root / old), whole=True)


def test_a_disk_that_fills_up_at_any_moment_leaves_the_old_snapshot(tmp_path: Path) -> None:
    template = tmp_path / "template" / publish_shop(tmp_path / "template", SHOP)
    with _mounted(tmp_path / "disk", 1024) as disk:
        root, store = disk / "snapshots", disk / "vectors"
        run_night(root, store, template, 1, lambda phase: None)
        old, failed = id_of(1), set[str]()
        for left_kb in range(0, 200, 8):
            phases: list[str] = []
            with _filled(disk, left_kb * 1024):
                try:
                    run_night(root, store, template, 2, phases.append)
                except OSError:
                    failed.add(phases[-1])
                    _require_old(root, old)
                    assert snapshot_ids(root) == [old]
                    assert not VectorStore(store, ENCODER).damaged
                else:
                    break
        assert current_id(root) == id_of(2)
        assert {"shard", "write"} <= failed


@contextmanager
def _filled(disk: Path, left: int) -> Iterator[None]:
    """All but so many bytes are taken."""
    space = os.statvfs(disk)
    filler = disk / "filler"
    filler.write_bytes(bytes(max(0, space.f_bavail * space.f_frsize - left - PAGE)))
    yield
    filler.unlink()


def test_a_disk_that_may_not_be_written_to_leaves_the_old_snapshot(tmp_path: Path) -> None:
    template = tmp_path / "template" / publish_shop(tmp_path / "template", SHOP)
    with _mounted(tmp_path / "disk", 2048) as disk:
        root = disk / "snapshots"
        run_night(root, disk / "vectors", template, 1, lambda phase: None)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(OSError, match="Read-only"):
            run_night(root, disk / "vectors", template, 2, lambda phase: None)
        _require_old(root, id_of(1))
