from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract.manifest import FORMAT, ID_INDEX, INDEX, ITEMS, MANIFEST, POPULAR, RANKER, VECTORS, Manifest
from indexer.contract.snapshot import (
    SnapshotError,
    checksum,
    open_snapshot,
    read_manifest,
)
from tests.damage import flip_byte, rewrite_manifest
from tests.properties import examples
from tests.snapshots import Shop, publish_shop

FILES = (ITEMS, ID_INDEX, VECTORS, INDEX, RANKER, POPULAR)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("published")
    return root / publish_shop(root, Shop(count=8, dimension=4))


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    return shutil.copytree(published, tmp_path / published.name)


def truncated(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1])


def grown(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data + b"\0")


def emptied(path: Path) -> None:
    path.unlink()
    path.touch()


def linked(path: Path) -> None:
    elsewhere = path.parent.parent / f"elsewhere-{path.name}"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (truncated, "bytes, the manifest says"),
    (grown, "bytes, the manifest says"),
    (emptied, "has 0 bytes"),
    (flip_byte, "its sha256 is not the manifest's"),
    (Path.unlink, "is missing"),
    (linked, "is a link"),
    (made_a_folder, "is not a file"),
]


def test_a_whole_snapshot_has_no_faults(folder: Path) -> None:
    snapshot = open_snapshot(folder).require_whole()
    assert snapshot.id == folder.name
    assert snapshot.servable
    assert all(snapshot.has(name) and snapshot.path(name) == folder / name for name in FILES)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("damage", "fault"), DAMAGE, ids=lambda value: getattr(value, "__name__", None))
def test_a_damaged_file_is_named_and_not_handed_out(
    folder: Path, name: str, damage: Callable[[Path], None], fault: str
) -> None:
    damage(folder / name)
    snapshot = open_snapshot(folder)
    assert list(snapshot.faults) == [name]
    assert fault in snapshot.faults[name]
    assert not snapshot.has(name)
    assert snapshot.servable == (name not in (ITEMS, ID_INDEX, POPULAR))
    with pytest.raises(SnapshotError, match=f"snapshot {folder.name}: {name}: "):
        snapshot.path(name)
    with pytest.raises(SnapshotError, match=f"snapshot {folder.name} refused: {name}: "):
        snapshot.require_whole()


@examples(150)
@given(st.data())
def test_one_changed_byte_in_any_file_is_noticed(published: Path, data: st.DataObject) -> None:
    path = published / data.draw(st.sampled_from(FILES))
    whole = path.read_bytes()
    try:
        flip_byte(path, data.draw(st.integers(0, len(whole) - 1)))
        assert list(open_snapshot(published).faults) == [path.name]
    finally:
        path.write_bytes(whole)


def test_every_fault_is_named_at_once(folder: Path) -> None:
    flip_byte(folder / INDEX)
    (folder / RANKER).unlink()
    with pytest.raises(SnapshotError, match=rf"{INDEX}: its sha256 .*; {RANKER}: is missing"):
        open_snapshot(folder).require_whole()


def test_files_that_the_manifest_does_not_hold_are_not_handed_out(folder: Path) -> None:
    (folder / "extra.bin").write_bytes(b"x")
    snapshot = open_snapshot(folder).require_whole()
    with pytest.raises(SnapshotError, match=r"extra\.bin: not in the manifest"):
        snapshot.path("extra.bin")


@pytest.mark.parametrize("name", [ITEMS, ID_INDEX, POPULAR])
def test_what_nothing_can_be_served_without_must_be_in_the_manifest(folder: Path, name: str) -> None:
    rewrite_manifest(folder, lambda manifest: manifest["files"].pop(name))
    snapshot = open_snapshot(folder)
    assert snapshot.faults == {name: "not in the manifest"}
    assert not snapshot.servable


@pytest.mark.parametrize("name", ["../outside", "a/b", "/etc/passwd", "", ".", "..", "x\0y", "n" * 300])
def test_names_that_lead_out_of_the_folder_are_faults(folder: Path, name: str) -> None:
    entry = checksum(folder / ITEMS).model_dump()
    rewrite_manifest(folder, lambda manifest: manifest["files"].update({name: entry}))
    snapshot = open_snapshot(folder)
    assert list(snapshot.faults) == [name]
    assert not snapshot.has(name)


def test_a_folder_that_is_a_link_or_missing_is_refused(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    with pytest.raises(SnapshotError, match="snapshot link: a link"):
        open_snapshot(link)
    with pytest.raises(SnapshotError, match="snapshot gone: no such folder"):
        open_snapshot(tmp_path / "gone")


def test_a_manifest_that_is_a_link_is_refused(folder: Path) -> None:
    linked(folder / MANIFEST)
    with pytest.raises(SnapshotError, match=r"manifest\.json: is a link"):
        open_snapshot(folder)


def test_a_missing_manifest_is_named(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    with pytest.raises(SnapshotError, match=rf"{folder.name}: manifest\.json: No such file"):
        open_snapshot(folder)


@pytest.mark.parametrize(
    "garbage", [b"", b"{", b"null", b"[]", b"7", b"\xff\xfe", b"{}", b"[" * 100_000, b'{"format": 3}', bytes(1000)]
)
def test_a_manifest_of_garbage_is_refused_by_name(folder: Path, garbage: bytes) -> None:
    (folder / MANIFEST).write_bytes(garbage)
    with pytest.raises(SnapshotError, match=rf"snapshot {folder.name}: manifest\.json: "):
        open_snapshot(folder)


def _set(*path: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: Any) -> None:
        for step in path[:-1]:
            manifest = manifest[step]
        manifest[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (_set("format", to=FORMAT + 1), "format"),
        (_set("id", to="../../etc"), "id"),
        (_set("id", to="20260101T000000Z-0000000g"), "id"),
        (_set("id", to="20260101T000000Z-12345678"), "id: is 20260101T000000Z-12345678, not the folder's name"),
        (_set("items", to=0), "items"),
        (_set("items", to="many"), "items"),
        (_set("dimension", to=0), "dimension"),
        (_set("surprise", to=1), "surprise"),
        (_set("query", "decay", to=0), "query.decay"),
        (_set("query", "decay", to=1.5), "query.decay"),
        (_set("query", "max_events", to=101), "query.max_events"),
        (_set("index", "nprobe", to=-1), "index.nprobe"),
        (_set("index", "recall_at_500", to=float("nan")), "index.recall_at_500"),
        (_set("ranker", "depth", to=0), "ranker.depth"),
        (_set("ranker", "inputs", 0, "dtype", to="float64"), "ranker.inputs.0.dtype"),
        (_set("files", ITEMS, "sha256", to="A" * 64), f"files.{ITEMS}.sha256"),
        (_set("files", ITEMS, "size", to=-1), f"files.{ITEMS}.size"),
        (_set("files", to=None), "files"),
        (lambda manifest: manifest.pop("golden"), "golden"),
    ],
)
def test_a_field_of_the_manifest_outside_its_contract_is_named(
    folder: Path, change: Callable[[dict[str, Any]], None], where: str
) -> None:
    rewrite_manifest(folder, change)
    with pytest.raises(SnapshotError) as refused:
        read_manifest(folder)
    assert str(refused.value).startswith(f"snapshot {folder.name}: {MANIFEST}: {where}")


@examples(300)
@given(st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), min_size=1, max_size=4))
def test_a_mutated_manifest_is_read_or_refused_and_never_crashes(
    published: Path, edits: list[tuple[int, bytes]]
) -> None:
    path = published / MANIFEST
    whole = path.read_bytes()
    data = whole
    for at, piece in edits:
        start = at % (len(data) + 1)
        data = data[:start] + piece + data[start + len(piece) // 2 + 1 :]
    refusal = ""
    try:
        path.write_bytes(data)
        assert isinstance(read_manifest(published), Manifest)
    except SnapshotError as error:
        refusal = str(error)
    finally:
        path.write_bytes(whole)
    assert not refusal or refusal.startswith(f"snapshot {published.name}: {MANIFEST}: ")


@pytest.mark.parametrize("closed", ["the folder", "the folder above"])
def test_a_folder_that_may_not_be_entered_is_refused_by_name(folder: Path, closed: str) -> None:
    shut = folder if closed == "the folder" else folder.parent
    mode = shut.stat().st_mode
    user = os.geteuid()
    shut.chmod(0)
    try:
        if user == 0:  # whom no mode keeps out
            os.seteuid(65534)
        with pytest.raises(SnapshotError, match=rf"snapshot {folder.name}: .*Permission denied"):
            open_snapshot(folder)
    finally:
        os.seteuid(user)
        shut.chmod(mode)
