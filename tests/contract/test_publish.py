from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from indexer.contract.manifest import INDEX, MANIFEST
from indexer.contract.publish import Locked, SnapshotWriter, exclusive, new_id, rollback, write_json
from indexer.contract.snapshot import CURRENT, SnapshotError, current_id, open_snapshot, snapshot_ids
from tests.damage import flip_byte, rewrite_manifest
from tests.snapshots import Shop, publish_shop

TINY = Shop(count=4, dimension=4)


def nightly(root: Path, nights: int) -> list[str]:
    """Publishes one snapshot a night, each with the one before as its parent; their ids."""
    made: list[str] = []
    for night in range(nights):
        made.append(publish_shop(root, TINY, age=night, parent=made[-1] if made else None))
    return made


def test_what_was_published_is_current_and_whole(tmp_path: Path) -> None:
    (name,) = nightly(tmp_path, 1)
    assert current_id(tmp_path) == name
    assert open_snapshot(tmp_path / name).require_whole().servable


def test_files_of_a_finished_snapshot_are_read_only(tmp_path: Path) -> None:
    (name,) = nightly(tmp_path, 1)
    assert (tmp_path / name / INDEX).stat().st_mode & 0o777 == 0o444


def test_three_are_kept_the_served_one_and_its_ancestors(tmp_path: Path) -> None:
    made = nightly(tmp_path, 5)
    assert snapshot_ids(tmp_path) == made[2:]


def test_after_a_rollback_the_ancestors_are_kept_rather_than_the_newest(tmp_path: Path) -> None:
    a, b, c = nightly(tmp_path, 3)
    assert rollback(tmp_path) == b
    assert rollback(tmp_path) == a
    assert snapshot_ids(tmp_path) == [a, b, c]
    d = publish_shop(tmp_path, TINY, age=3, parent=a)
    assert snapshot_ids(tmp_path) == [a, c, d]


def test_a_rollback_goes_to_the_parent_or_to_the_one_named(tmp_path: Path) -> None:
    a, b, c = nightly(tmp_path, 3)
    assert rollback(tmp_path) == b
    assert current_id(tmp_path) == b
    assert rollback(tmp_path, c) == c
    assert rollback(tmp_path, a) == a
    assert current_id(tmp_path) == a


def test_a_rollback_to_a_damaged_snapshot_is_refused_by_name_and_changes_nothing(tmp_path: Path) -> None:
    a, b = nightly(tmp_path, 2)
    flip_byte(tmp_path / a / INDEX)
    with pytest.raises(SnapshotError, match=rf"snapshot {a} refused: index\.faiss: its sha256"):
        rollback(tmp_path)
    assert current_id(tmp_path) == b
    assert snapshot_ids(tmp_path) == [a, b]


def test_there_is_nothing_to_roll_back_to(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="nothing is published"):
        rollback(tmp_path)
    (name,) = nightly(tmp_path, 1)
    with pytest.raises(SnapshotError, match=f"{name} has no parent that is still kept"):
        rollback(tmp_path)


@pytest.mark.parametrize("target", ["../elsewhere", "20200101T000000Z-00000000", ".", "x" * 300, "a\0b"])
def test_a_rollback_to_what_is_not_kept_is_refused(tmp_path: Path, target: str) -> None:
    made = nightly(tmp_path, 1)
    with pytest.raises(SnapshotError, match="is not the id of a snapshot that is kept"):
        rollback(tmp_path, target)
    assert current_id(tmp_path) == made[0]


def test_leaving_the_writer_unfinished_leaves_nothing(tmp_path: Path) -> None:
    def build() -> None:
        with SnapshotWriter(tmp_path, "x") as writer:
            writer.path("a").write_text("a")
            raise RuntimeError("the build stops")

    with pytest.raises(RuntimeError, match="the build stops"):
        build()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_build_left_is_removed_by_the_next_and_never_listed(tmp_path: Path) -> None:
    left_over = tmp_path / ".building-20260101T000000Z-00000007"
    left_over.mkdir()
    (left_over / "vectors.npy").write_text("half")
    assert snapshot_ids(tmp_path) == []
    made = nightly(tmp_path, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([CURRENT, *made])


def test_the_writer_knows_size_and_checksum_of_what_was_written(tmp_path: Path) -> None:
    with SnapshotWriter(tmp_path, "x") as writer:
        writer.path("a").write_bytes(b"abc")
        writer.path(MANIFEST).write_bytes(b"not among the files")
        (entry,) = writer.files().items()
    assert entry[0] == "a"
    assert (entry[1].size, entry[1].sha256[:8]) == (3, "ba7816bf")


class Killed(BaseException):
    """The process is gone: nothing after this happens, not even tidying up."""


def test_a_build_killed_at_any_step_leaves_the_old_or_the_new_snapshot_whole(tmp_path: Path) -> None:
    seen: set[str] = set()
    for step in range(1000):
        root = tmp_path / str(step)
        old = publish_shop(root, TINY)
        try:
            with pytest.MonkeyPatch.context() as patch:
                kill_at(patch, step)
                new = publish_shop(root, TINY, age=1, parent=old)
        except Killed:
            current = current_id(root)
            assert current is not None
            assert open_snapshot(root / current).require_whole().servable
            seen.add("old" if current == old else "new")
            assert publish_shop(root, TINY, age=2, parent=current) == current_id(root)
        else:
            assert current_id(root) == new
            assert step > 10
            break
    assert seen == {"old", "new"}


def kill_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Kills before the step-th call that changes or syncs the disk, and lets nothing happen from then on."""
    left = [step]

    def dies(call: Callable[..., object]) -> Callable[..., object]:
        def wrapped(*args: object, **options: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return call(*args, **options)

        return wrapped

    tidy: Callable[..., None] = shutil.rmtree
    patch.setattr(os, "fsync", dies(os.fsync))
    for name in ("rename", "replace", "chmod", "mkdir"):
        patch.setattr(Path, name, dies(getattr(Path, name)))
    patch.setattr(shutil, "rmtree", lambda *args, **options: tidy(*args, **options) if left[0] >= 0 else None)


def test_pruning_forgives_a_snapshot_whose_manifest_is_gone(tmp_path: Path) -> None:
    made = nightly(tmp_path, 3)
    (tmp_path / made[1] / MANIFEST).unlink()
    newest = publish_shop(tmp_path, TINY, age=3, parent=made[2])
    assert snapshot_ids(tmp_path) == [made[1], made[2], newest]


def test_the_lock_names_who_holds_it_and_is_free_afterwards(tmp_path: Path) -> None:
    with (
        exclusive(tmp_path, "feedline index build"),
        pytest.raises(Locked, match=rf"{tmp_path} is being written by feedline index build, process {os.getpid()} on "),
        exclusive(tmp_path, "another"),
    ):
        pass
    with exclusive(tmp_path, "another"):
        pass


def test_a_lock_that_was_refused_still_names_its_holder(tmp_path: Path) -> None:
    with exclusive(tmp_path, "first"):
        for _ in range(3):
            with pytest.raises(Locked, match="written by first"), exclusive(tmp_path, "second"):
                pass


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    holder = (
        "import sys, pathlib, indexer.contract.publish as p\n"
        "with p.exclusive(pathlib.Path(sys.argv[1]), 'the holder'):\n    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with (
            pytest.raises(Locked, match=f"written by the holder, process {process.pid} on "),
            exclusive(tmp_path, "we"),
        ):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    with exclusive(tmp_path, "we"):
        pass


def test_ids_sort_by_time_whatever_the_time_zone() -> None:
    early = datetime(2026, 11, 30, 23, 0, tzinfo=timezone(timedelta(hours=2)))
    late = datetime(2026, 11, 30, 21, 30, tzinfo=UTC)
    assert new_id(early, "ffffffffffff") == "20261130T210000Z-ffffffff"
    assert new_id(early, "ffffffff") < new_id(late, "00000000")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_report_with_a_number_that_is_none_is_refused(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "report.json", {"recall": value})


def test_the_parent_may_be_gone_when_a_rollback_looks_for_it(tmp_path: Path) -> None:
    a, b, c = nightly(tmp_path, 3)
    shutil.rmtree(tmp_path / b)
    assert rollback(tmp_path) == a
    assert current_id(tmp_path) == a
    assert snapshot_ids(tmp_path) == [a, c]


def test_a_manifest_that_names_another_id_is_not_rolled_back_to(tmp_path: Path) -> None:
    a, b = nightly(tmp_path, 2)
    rewrite_manifest(tmp_path / a, lambda manifest: manifest.update(id=b))
    with pytest.raises(SnapshotError, match="not the folder's name"):
        rollback(tmp_path)
    assert current_id(tmp_path) == b
