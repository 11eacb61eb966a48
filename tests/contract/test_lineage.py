from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from indexer.contract.manifest import MANIFEST
from indexer.contract.snapshot import CURRENT, SnapshotError, current_id, lineage, snapshot_ids
from tests.damage import rewrite_manifest
from tests.snapshots import Shop, publish_shop


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    return root / publish_shop(root, Shop(count=8, dimension=4))


def test_nothing_published_is_no_current_snapshot(tmp_path: Path) -> None:
    assert current_id(tmp_path) is None
    assert current_id(tmp_path / "not made yet") is None
    assert snapshot_ids(tmp_path / "not made yet") == []


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\n", b"..", b"../other\n", b"/etc\n", b".building-x\n", b"\xff", "é".encode(), b"x" * 300, b"a\0b"),
        b"20260101T000000Z-00000007\n20260101T000000Z-00000008\n",
        b" 20260101T000000Z-00000007\n",
        b"20260101T000000Z-0000000",
    ],
)
def test_a_current_that_names_no_snapshot_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / CURRENT).write_bytes(text)
    with pytest.raises(SnapshotError, match="CURRENT: "):
        current_id(tmp_path)


def test_a_current_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / CURRENT).mkdir()
    with pytest.raises(SnapshotError, match="CURRENT: "):
        current_id(tmp_path)


@pytest.mark.parametrize("end", ["", "\n"])
def test_current_with_or_without_its_newline_is_read(tmp_path: Path, end: str) -> None:
    (tmp_path / CURRENT).write_text(f"20260101T000000Z-00000007{end}")
    assert current_id(tmp_path) == "20260101T000000Z-00000007"


def ids(count: int) -> list[str]:
    return [f"2026010{day}T000000Z-00000007" for day in range(1, count + 1)]


def stub(root: Path, published: Path, name: str, parent: str | None) -> None:
    shutil.copytree(published, root / name)
    rewrite_manifest(root / name, lambda manifest: manifest.update(id=name, parent=parent))


def test_snapshots_are_listed_oldest_first_without_what_is_not_one(tmp_path: Path) -> None:
    first, second = ids(2)
    for name in (second, first, ".building-x", "notes", f"{first}x", "20260101T000000Z-0000000G"):
        (tmp_path / name).mkdir()
    (tmp_path / "20260103T000000Z-00000007").touch()
    (tmp_path / "20260104T000000Z-00000007").symlink_to(tmp_path / first)
    assert snapshot_ids(tmp_path) == [first, second]


def test_the_lineage_goes_from_parent_to_parent(tmp_path: Path, published: Path) -> None:
    a, b, c, d = ids(4)
    for name, parent in ((a, None), (b, a), (c, b), (d, b)):
        stub(tmp_path, published, name, parent)
    assert lineage(tmp_path, d) == [d, b, a]


def test_the_newest_older_snapshot_stands_in_for_a_parent_that_is_gone_or_unreadable(
    tmp_path: Path, published: Path
) -> None:
    a, b, c, d = ids(4)
    for name, parent in ((a, None), (b, a), (d, c)):
        stub(tmp_path, published, name, parent)
    assert lineage(tmp_path, d) == [d, b, a]
    (tmp_path / b / MANIFEST).write_text("garbage")
    assert lineage(tmp_path, d) == [d, b, a]
    assert lineage(tmp_path, "20260105T000000Z-00000007") == ["20260105T000000Z-00000007", d, b, a]


def test_parents_that_point_at_each_other_end(tmp_path: Path, published: Path) -> None:
    a, b = ids(2)
    stub(tmp_path, published, a, b)
    stub(tmp_path, published, b, a)
    assert lineage(tmp_path, b) == [b, a]
    assert lineage(tmp_path, a) == [a]
