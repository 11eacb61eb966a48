from __future__ import annotations

import json
from pathlib import Path

import pytest

from indexer.contract.manifest import MANIFEST
from indexer.contract.seal import seal_of
from indexer.contract.snapshot import SnapshotError, read_manifest
from tests.snapshots import Shop, publish_shop


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / publish_shop(tmp_path, Shop(count=8, dimension=4))


def rewritten(folder: Path, **changes: object) -> None:
    """The manifest with other values and the seal that it had; a seal of None is left out."""
    content = json.loads((folder / MANIFEST).read_bytes()) | changes
    if content["seal"] is None:
        del content["seal"]
    (folder / MANIFEST).write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize(
    "changes",
    [{"encoder": "another"}, {"evaluation": {"ndcg": 1.0}}, {"seal": None}, {"seal": "0" * 64}, {"format": 3}],
)
def test_a_manifest_that_was_changed_is_refused_though_every_field_is_possible(
    folder: Path, changes: dict[str, object]
) -> None:
    rewritten(folder, **changes)
    with pytest.raises(SnapshotError, match=r"manifest\.json: seal: it was changed after it was written"):
        read_manifest(folder)


def test_how_the_manifest_is_laid_out_is_not_part_of_what_it_says(folder: Path) -> None:
    before = read_manifest(folder)
    content = json.loads((folder / MANIFEST).read_bytes())
    (folder / MANIFEST).write_text(json.dumps(dict(reversed(content.items()))), encoding="utf-8")
    assert read_manifest(folder) == before


def test_a_snapshot_of_the_format_before_the_seal_is_read(folder: Path) -> None:
    rewritten(folder, format=3, seal=None)
    assert read_manifest(folder).format == 3


def test_what_a_later_version_adds_does_not_break_older_seals() -> None:
    content = {"id": "x", "evaluation": {"ndcg": 0.1}}
    assert seal_of(content | {"seal": "y"}) == seal_of(content)
