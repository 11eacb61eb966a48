"""Snapshots that were damaged on their way: none is served."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from indexer.contract.manifest import MANIFEST, Manifest
from indexer.contract.snapshot import SnapshotError, open_snapshot, read_manifest
from services.feed.loading import Loader
from tests.snapshots import Shop, publish_shop

MUTATIONS = int(os.environ.get("FEEDLINE_MUTATIONS", "240"))
"""A sample; `make long` asks for 10,000."""
SHOP = Shop(count=40, dimension=8, tower=True, strong=True)
LOADER = Loader(exact_below=0, threads=1, cascade=0.2)
Contents = dict[str, bytes]


@dataclass(frozen=True)
class Damaged:
    """A snapshot's folder, what is in it when it is whole, and the folder of another one of the same shape."""

    folder: Path
    whole: Contents
    manifest: Manifest
    other: Contents
    rng: random.Random

    def some(self) -> str:
        return self.rng.choice(sorted(self.whole))

    def put(self, name: str, data: bytes | None) -> None:
        """None: the file is gone."""
        (self.folder / name).unlink()
        if data is not None:
            (self.folder / name).write_bytes(data)

    def restore(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        for name, data in self.whole.items():
            (self.folder / name).write_bytes(data)

    def changed(self) -> set[str]:
        return {name for name, data in self.whole.items() if _read(self.folder / name) != data}


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and not path.is_symlink() else None


def _contents(folder: Path) -> Contents:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _flip_a_bit(it: Damaged) -> None:
    name = it.some()
    data = bytearray(it.whole[name])
    data[it.rng.randrange(len(data))] ^= 1 << it.rng.randrange(8)
    it.put(name, bytes(data))


def _overwrite_a_piece(it: Damaged) -> None:
    name = it.some()
    data = it.whole[name]
    at, length = it.rng.randrange(len(data)), it.rng.randrange(1, 65)
    piece = it.rng.choice([bytes(length), it.rng.randbytes(length)])[: len(data) - at]
    it.put(name, data[:at] + piece + data[at + len(piece) :])


def _truncate(it: Damaged) -> None:
    name = it.some()
    it.put(name, it.whole[name][: it.rng.randrange(len(it.whole[name]))])


def _extend(it: Damaged) -> None:
    name = it.some()
    it.put(name, it.whole[name] + it.rng.randbytes(it.rng.randrange(1, 100)))


def _delete(it: Damaged) -> None:
    it.put(it.some(), None)


def _swap_two_files(it: Damaged) -> None:
    one, two = it.rng.sample(sorted(it.whole), 2)
    it.put(one, it.whole[two])
    it.put(two, it.whole[one])


def _take_one_of_another_snapshot(it: Damaged) -> None:
    name = it.some()
    it.put(name, it.other[name])


def _put_a_link(it: Damaged) -> None:
    name = it.some()
    target = it.folder.parent / f"of-{name}"
    target.write_bytes(it.whole[name])
    it.put(name, None)
    (it.folder / name).symlink_to(target)


def _put_a_folder(it: Damaged) -> None:
    name = it.some()
    it.put(name, None)
    (it.folder / name).mkdir()


def _edit_the_manifest(it: Damaged) -> None:
    content = json.loads(it.whole[MANIFEST])
    at, key = it.rng.choice(list(_places(content)))
    old = at[key]
    new: Any = it.rng.choice([None, old + 1 if isinstance(old, int | float) else f"{old}x", [], {}, 0, "x", 1e9])
    if it.rng.random() < 0.2:
        del at[key]
    else:
        at[key] = new
    it.put(MANIFEST, json.dumps(content).encode())


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every place of a JSON value where another value could stand."""
    keys = content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    return [(content, key) for key in keys] + [place for key in keys for place in _places(content[key])]


WAYS: tuple[Callable[[Damaged], None], ...] = (
    _flip_a_bit,
    _overwrite_a_piece,
    _truncate,
    _extend,
    _delete,
    _swap_two_files,
    _take_one_of_another_snapshot,
    _put_a_link,
    _put_a_folder,
    _edit_the_manifest,
)


@pytest.mark.timeout(60 + MUTATIONS)
def test_a_mutated_snapshot_is_never_served(tmp_path: Path) -> None:
    """facebookresearch/faiss#5400, #5312: a malformed index is accepted. Every file, the manifest too, in every way."""
    rng = random.Random(5400)
    other = tmp_path / "other" / publish_shop(tmp_path / "other", replace(SHOP, seed=8))
    folder = tmp_path / "one" / publish_shop(tmp_path / "one", SHOP)
    it = Damaged(folder, _contents(folder), read_manifest(folder), _contents(other), rng)
    LOADER.load(open_snapshot(folder), whole=True)
    refused: Counter[str] = Counter()
    for number in range(MUTATIONS):
        way = WAYS[number % len(WAYS)]
        way(it)
        if _is_refused(it):
            refused[way.__name__] += 1
        it.restore()
    print(f"{MUTATIONS} mutations, refused: {dict(refused)}")
    assert refused.total() > 0.9 * MUTATIONS


def _is_refused(it: Damaged) -> bool:
    """Whether it is not served whole, and then nothing that was changed in part, either. Where it is served, nothing
    was changed (zeros over zeros), or the manifest is laid out otherwise and says the same."""
    try:
        snapshot = open_snapshot(it.folder)
    except SnapshotError:
        return True
    changed = it.changed() - {MANIFEST}
    assert snapshot.manifest == it.manifest
    assert changed == set(snapshot.faults)
    try:
        LOADER.load(snapshot, whole=True)
    except SnapshotError:
        return True
    assert not changed
    return False
