"""The encode step: each content once, longest texts first, stored as it goes, so that a kill loses one shard."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

from indexer.contract.snapshot import current_id, open_snapshot
from indexer.encoder import Encoder
from indexer.encoding import Encoded, encode_items
from indexer.job import build
from indexer.progress import Silent, Stages
from indexer.settings import EncoderSettings, IndexSettings
from indexer.text import CONTENT_TEXT
from indexer.vector_store import Vectors
from indexer.workspace import Workspace
from tests.clock import ManualClock
from tests.indexer.shop import NOW, load_items, scratch, write

SHARD = 32
"""Texts."""


def encode(work: Workspace, settings: EncoderSettings, **more: object) -> tuple[Encoded, Vectors, list[str]]:
    """The step over the loaded catalogue; the vectors by row, and what was noted."""
    reporter = Silent()
    encoded = encode_items(
        work,
        Stages(reporter),
        settings,
        work.folder.parent / "vectors",
        work.folder / "content.npy",
        items=work.count("select count(*) from items"),
        texts=work.count("select count(*) from texts"),
        threads=2,
        **more,  # type: ignore[arg-type]
    )
    return encoded, np.load(work.folder / "content.npy"), reporter.notes


def shop_of(root: Path, titles: Sequence[str]) -> Path:
    return write(root / "items.parquet", [{"item_id": f"i{at}", "title": title} for at, title in enumerate(titles)])


def test_equal_texts_are_encoded_once_and_every_item_has_its_vector(model: Path, tmp_path: Path) -> None:
    titles = [f"thing {at % 70}" for at in range(200)]
    with scratch(tmp_path / "out") as work:
        load_items(work, shop_of(tmp_path, titles))
        encoded, vectors, _ = encode(work, EncoderSettings(model=str(model), batch_size=8))
    assert (encoded.encoded, encoded.dimension, vectors.shape) == (70, 32, (200, 32))
    assert encoded.first_rows.tolist() == list(range(70))
    assert all(np.array_equal(vectors[at], vectors[at % 70]) for at in range(200))
    assert len(np.unique(vectors, axis=0)) == 70


def test_first_rows_are_those_of_each_content(model: Path, tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work:
        load_items(work, shop_of(tmp_path, ["tea", "cups", "tea", "coffee", "cups", "new", "tea"]))
        encoded, _, _ = encode(work, EncoderSettings(model=str(model)))
    assert encoded.first_rows.tolist() == [0, 1, 3, 5]


def test_the_size_of_chunks_and_shards_changes_no_vector(model: Path, tmp_path: Path) -> None:
    found = []
    for at, (batch, shard) in enumerate(((1, 1), (7, 20), (64, 65_536))):
        with scratch(tmp_path / str(at)) as work:
            load_items(work, shop_of(tmp_path, [f"thing {number} new" * (1 + number % 5) for number in range(90)]))
            found.append(encode(work, EncoderSettings(model=str(model), batch_size=batch, shard_size=shard))[1])
            keys = list((tmp_path / str(at) / "vectors").rglob("*.keys.npy"))
            assert max(len(np.load(path)) for path in keys) <= shard
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_a_shard_is_written_when_its_time_has_come(model: Path, tmp_path: Path) -> None:
    now = ManualClock()

    def clock() -> float:
        now.advance(1)
        return now()

    settings = EncoderSettings(model=str(model), batch_size=4, shard_seconds=3)
    with scratch(tmp_path / "out") as work:
        load_items(work, shop_of(tmp_path, [f"thing {at}" for at in range(48)]))
        encode(work, settings, clock=clock)
    sizes = [len(np.load(path)) for path in (tmp_path / "out" / "vectors").rglob("*.keys.npy")]
    assert len(sizes) == 4
    assert set(sizes) == {12}


def test_a_shard_that_is_damaged_is_said_and_only_its_texts_are_encoded_again(model: Path, tmp_path: Path) -> None:
    settings = EncoderSettings(model=str(model), batch_size=4, shard_size=8)
    with scratch(tmp_path / "out") as work:
        load_items(work, shop_of(tmp_path, [f"thing {at}" for at in range(40)]))
        _, before, _ = encode(work, settings)
        sorted((tmp_path / "out" / "vectors").rglob("*.vectors.npy"))[1].write_bytes(b"")
        encoded, after, notes = encode(work, settings)
        again, _, _ = encode(work, settings)
    assert (encoded.encoded, again.encoded) == (8, 0)
    assert np.array_equal(before, after)
    assert "its texts are encoded again" in notes[0]


def test_a_key_is_that_of_the_text_and_of_its_pictures(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work:
        work.sql.execute(CONTENT_TEXT)
        query = "select content_key($1, $2), content_key($1, null)"
        ((both, text),) = work.sql.execute(query, ["Grüner Tee", b"digest"]).fetchall()
    assert text == hashlib.sha256("Grüner Tee".encode()).digest()[:16]
    assert both == hashlib.sha256(b"\xffdigest" + "Grüner Tee".encode()).digest()[:16]


_WATCH = """
import os, sys
def watch(event, given):
    global left
    if event == "os.rename" and folder in str(given[0]):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
folder, left = sys.argv[2], int(sys.argv[3])
sys.addaudithook(watch)
"""
_STEP = """
from pathlib import Path
from indexer.settings import EncoderSettings
from tests.indexer.shop import load_items, scratch
from tests.indexer.test_encoding import encode
with scratch(Path(folder).parent) as work:
    load_items(work, Path(folder).parent.parent / "items.parquet")
    encode(work, EncoderSettings.model_validate_json(sys.argv[1]))
"""
_BUILD = """
from datetime import UTC, datetime
from pathlib import Path
from indexer.job import build
from indexer.progress import Silent
from indexer.settings import IndexSettings
root = Path(folder).parent
build(IndexSettings.model_validate_json(sys.argv[1]), root / "items.parquet", root / "events.jsonl", root / "snapshots",
      now=datetime.now(UTC), reporter=Silent())
"""


def killed_at(rename: int, code: str, settings: BaseModel, folder: Path) -> None:
    """Runs the code until that rename in the folder, before which it is killed."""
    command = [sys.executable, "-c", _WATCH + code, settings.model_dump_json(), str(folder), str(rename)]
    assert subprocess.run(command, check=False, timeout=100).returncode == -signal.SIGKILL


@pytest.mark.parametrize("rename", [1, 2, 4, 9])
def test_a_step_that_is_killed_while_it_stores_vectors_loses_one_shard(
    model: Path, tmp_path: Path, rename: int
) -> None:
    """Two renames a shard, the keys last: whichever of them is the last thing that happens, whole shards stay."""
    settings = EncoderSettings(kind="static", model=str(model), batch_size=1, shard_size=SHARD)
    distilled = tmp_path / "out" / "vectors" / "static" / Encoder(settings, 1).fingerprint
    distilled.mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json"):  # the model of the test is static itself
        shutil.copyfile(next(model.rglob(name)), distilled / name)
    catalogue = shop_of(tmp_path, [f"thing {at}" for at in range(200)])
    killed_at(rename, _STEP, settings, tmp_path / "out" / "vectors")
    with scratch(tmp_path / "out") as work:
        load_items(work, catalogue)
        encoded, vectors, _ = encode(work, settings)
    assert encoded.encoded == 200 - (rename - 1) // 2 * SHARD
    assert len(np.unique(vectors, axis=0)) == 200


def test_a_build_that_is_killed_while_it_stores_vectors_leaves_the_published_snapshot(
    model: Path, tmp_path: Path
) -> None:
    settings = IndexSettings(
        encoder=EncoderSettings(model=str(model), batch_size=4, shard_size=SHARD),
        vector_store=tmp_path / "vectors",
        threads=2,
        memory_limit_mb=256,
    )
    events = write(tmp_path / "events.jsonl", [])
    snapshots = tmp_path / "snapshots"
    old = build(settings, shop_of(tmp_path, ["tea"]), events, snapshots, now=NOW, reporter=Silent()).snapshot
    catalogue = shop_of(tmp_path, [f"thing {at}" for at in range(200)])
    killed_at(4, _BUILD, settings, tmp_path / "vectors")
    assert current_id(snapshots) == old
    open_snapshot(snapshots / old).require_whole()
    summary = build(settings, catalogue, events, snapshots, now=NOW, reporter=Silent())
    assert (summary.encoded, summary.reused) == (200 - SHARD, SHARD)
    assert current_id(snapshots) == summary.snapshot
