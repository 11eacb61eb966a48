"""The nightly job as a whole: real files in, a snapshot out, and nothing published that must not be."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from indexer.contract import manifest as names
from indexer.contract.items import ItemTable
from indexer.contract.publish import Locked, exclusive
from indexer.contract.snapshot import Snapshot, current_id, open_snapshot, snapshot_ids
from indexer.errors import BuildError, GateFailed, TooManyBadRows
from indexer.job import build
from indexer.learn.ranker import LinearRanker, TrainingSet, fit
from indexer.progress import Silent
from indexer.settings import AnnSettings, EncoderSettings, GateSettings, IndexSettings, RankerSettings
from indexer.summary import BuildSummary
from tests.indexer.shop import NOW, plain_events, plain_items, write


class Shop:
    """A user's folder: files, settings, snapshots."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.out = folder / "snapshots"
        self.settings = IndexSettings(
            encoder=EncoderSettings(model=str(model), shard_size=64, batch_size=16),
            vector_store=folder / "vectors",
            threads=1,
            memory_limit_mb=256,
        )
        self.notes: list[str] = []

    def build(
        self, items: list[dict[str, Any]], events: list[dict[str, Any]], *, kind: str = "parquet", **more: Any
    ) -> BuildSummary:
        """Writes the files and builds; no events make a file without a byte."""
        catalogue = write(self.folder / f"catalogue.{kind}", items)
        happened = write(self.folder / "events.jsonl", events)
        settings = self.settings.model_copy(update=more.pop("settings", {}))
        reporter = Silent()
        try:
            return build(settings, catalogue, happened, self.out, **{"now": NOW, "reporter": reporter, **more})
        finally:
            self.notes += reporter.notes

    def current(self) -> Snapshot:
        """What is published, whole."""
        identity = current_id(self.out)
        assert identity is not None
        return open_snapshot(self.out / identity).require_whole()


@pytest.fixture
def shop(tmp_path: Path, model: Path) -> Shop:
    return Shop(tmp_path, model)


def test_a_shop_becomes_a_snapshot_and_a_ranker_that_learned(shop: Shop) -> None:
    events = plain_events(300, 3000)
    summary = shop.build(plain_items(300), events, settings={"ann": AnnSettings(flat_up_to=50)})
    snapshot = shop.current()
    manifest = snapshot.manifest
    assert (summary.snapshot, summary.parent, summary.overridden) == (manifest.id, None, [])
    assert (summary.items, summary.distinct_texts, summary.encoded, summary.reused) == (300, 300, 300, 0)
    assert (summary.events, summary.sessions, summary.event_bad) == (len(events), 3000, 0)
    assert set(manifest.files) == {
        names.ITEMS,
        names.ID_INDEX,
        names.VECTORS,
        names.INDEX,
        names.RANKER,
        names.POPULAR,
        names.REPORT,
    }
    items = ItemTable.load(snapshot.path(names.ITEMS), snapshot.path(names.ID_INDEX))
    assert [items.row(f"i{row}") for row in (0, 299)] == [0, 299]
    assert items.popularity.max() == 1.0
    vectors = np.load(snapshot.path(names.VECTORS))
    assert (vectors.shape, vectors.dtype) == ((manifest.items, manifest.dimension), np.float16)
    assert manifest.index.recall_at_500 >= 0.95
    assert len(manifest.golden) == 8
    ranker = summary.ranker
    assert ranker["trained_on"] >= 50
    assert ranker["parity"] <= 1e-5
    assert ranker["weights"]["category_match"] > 0, "a session stays in its category"
    evaluation = manifest.evaluation
    assert evaluation["sessions"] == pytest.approx(300, abs=1)
    assert evaluation["ranked"]["ndcg@10"] > evaluation["retrieval"]["ndcg@10"]
    report = json.loads(snapshot.path(names.REPORT).read_bytes())
    assert report["evaluation"] == evaluation
    assert report["items"] == 300
    assert set(summary.seconds) >= {"catalogue", "events", "encode", "index", "popularity", "learn", "publish"}


def test_a_second_build_encodes_only_what_changed(shop: Shop) -> None:
    items = plain_items(200)
    assert shop.build(items, []).encoded == 200
    assert shop.build(items, []).encoded == 0
    for row in range(0, 200, 50):  # 2 % of the texts
        items[row]["title"] = f"new thing {row}"
    items[7]["price"] = 99.0
    summary = shop.build(items, [])
    assert (summary.encoded, summary.reused) == (4, 196)
    first, second, third = (np.load(shop.out / each / names.VECTORS) for each in snapshot_ids(shop.out))
    assert np.array_equal(first, second)
    assert np.flatnonzero((second != third).any(axis=1)).tolist() == [0, 50, 100, 150]


@pytest.mark.parametrize(
    ("items", "texts"),
    [
        ([{"item_id": "only", "title": "thing"}], 1),
        ([{"item_id": f"i{at}", "title": "same thing"} for at in range(40)], 1),
        (plain_items(3), 3),
    ],
    ids=["one item", "identical items", "three items"],
)
def test_a_small_shop_without_events_is_built(shop: Shop, items: list[dict[str, Any]], texts: int) -> None:
    summary = shop.build(items, [])
    assert (summary.items, summary.distinct_texts, summary.encoded) == (len(items), texts, texts)
    assert summary.evaluation["sessions"] == 0
    assert summary.ranker["trained_on"] == 0
    assert summary.ranker["why"] == "0 sessions to learn from, index.ranker.min_sessions is 200"
    snapshot = shop.current()
    assert snapshot.manifest.golden
    assert pq.read_table(snapshot.path(names.POPULAR)).num_rows >= len(items)


def test_ids_keep_their_zeros_to_the_end(shop: Shop) -> None:
    shop.build([{"item_id": each, "title": f"thing {each}"} for each in ("007", "7")], [], kind="csv")
    snapshot = shop.current()
    items = ItemTable.load(snapshot.path(names.ITEMS), snapshot.path(names.ID_INDEX))
    assert (items.row("007"), items.row("7"), items.row("07")) == (0, 1, None)


def test_two_builds_of_one_shop_are_the_same_but_for_id_and_times(shop: Shop) -> None:
    items, events = plain_items(300), plain_events(300, 1200)
    settings = {"ann": AnnSettings(flat_up_to=50), "threads": 2}
    ids = [shop.build(items, events, settings=settings).snapshot for _ in range(2)]
    first, second = (open_snapshot(shop.out / each).manifest for each in ids)
    assert first.id < second.id
    assert second.parent == first.id
    for manifest in (first, second):
        manifest.files.pop(names.REPORT)  # holds id and times
    changed = {"id", "parent"}
    assert first.model_dump(exclude=changed) == second.model_dump(exclude=changed)


def test_until_builds_as_of_a_past_day(shop: Shop) -> None:
    events = plain_events(60, 300)
    until = NOW - timedelta(days=30)
    past = [each for each in events if datetime.fromisoformat(each["occurred_at"]) <= until]
    as_of = shop.build(plain_items(60), events, until=until)
    assert as_of.event_later == len(events) - len(past)
    assert shop.current().manifest.until == until.isoformat()
    popular = shop.current().path(names.POPULAR).read_bytes()
    then = shop.build(plain_items(60), past, until=until)
    assert shop.current().path(names.POPULAR).read_bytes() == popular
    assert then.evaluation == as_of.evaluation


def test_the_second_of_two_builds_says_who_holds_the_lock(shop: Shop) -> None:
    with (
        exclusive(shop.out, "feedline index build of elsewhere.parquet"),
        pytest.raises(Locked, match=r"being written by feedline index build of elsewhere.parquet, process \d+ on"),
    ):
        shop.build(plain_items(3), [])


def test_too_many_bad_rows_stop_the_build_and_the_parent_stays(shop: Shop) -> None:
    parent = shop.build(plain_items(20), []).snapshot
    items = [{**item, "price": -1.0} if at < 3 else item for at, item in enumerate(plain_items(20))]
    with pytest.raises(TooManyBadRows, match=r"3 of 20 catalogue rows are bad \(15.0%\)") as error:
        shop.build(items, [])
    assert shop.current().id == parent
    kept = Path(str(error.value).rsplit(": ", 1)[1])
    assert [json.loads(line)["row"] for line in kept.read_text().splitlines()] == [1, 2, 3]
    assert {path.name for path in shop.out.iterdir()} == {".lock", "CURRENT", parent, "quarantine"}


def test_a_few_bad_rows_are_counted_in_the_summary(shop: Shop) -> None:
    items = [*plain_items(40), {"item_id": "i0", "title": "again"}]
    events = [{"session_id": "s", "item_id": f"i{at}", "occurred_at": 1777629600} for at in range(30)]
    summary = shop.build(items, [*events, {"session_id": "s", "item_id": "gone", "occurred_at": 1777629600}])
    assert summary.quarantined == {
        "catalogue item_id is a duplicate: the first row with it counts": 1,
        "events item_id is not in the catalogue": 1,
    }
    assert summary.quarantine_file is not None
    assert len(Path(summary.quarantine_file).read_text().splitlines()) == 2


def test_gates_hold_back_a_snapshot_unless_forced(shop: Shop) -> None:
    parent = shop.build(plain_items(50), []).snapshot
    hidden = [{**item, "available": False} for item in plain_items(39)]
    with pytest.raises(GateFailed) as error:
        shop.build(hidden, [])
    assert "items against the parent: 39, expected at least 40 (index.gates.max_shrink)" in str(error.value)
    assert "available items: 0, expected at least 1" in str(error.value)
    assert shop.current().id == parent
    assert snapshot_ids(shop.out) == [parent]
    forced = shop.build(hidden, [], force=True)
    assert len(forced.overridden) == 2
    assert shop.current().id == forced.snapshot


def test_a_ranker_that_ranks_below_retrieval_is_held_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ranker that learned from other shoppers than those of the evaluation: here, from reversed labels."""

    def reversed_fit(data: TrainingSet, *, threads: int) -> LinearRanker:
        ranker = fit(data, threads=threads)
        ranker.weights.data.neg_()
        return ranker

    monkeypatch.setattr("indexer.learn.train.fit", reversed_fit)
    settings = {"gates": GateSettings(ranker_tolerance=0), "ranker": RankerSettings(min_sessions=50)}
    with pytest.raises(GateFailed, match=r"NDCG@10 of the ranker: .* \(index.gates.ranker_tolerance\)"):
        shop.build(plain_items(300), plain_events(300, 1500), settings=settings)
    assert current_id(shop.out) is None


def test_the_oldest_snapshots_go_and_ids_sort_by_time_of_building(shop: Shop) -> None:
    two = {"keep": 2}
    built = [
        shop.build(plain_items(4), [], settings=two, now=NOW - timedelta(hours=hour)).snapshot for hour in range(3)
    ]
    assert built == sorted(built)
    assert snapshot_ids(shop.out) == built[1:]
    assert [open_snapshot(shop.out / each).manifest.parent for each in built[1:]] == built[:2]


def test_a_damaged_parent_does_not_stop_the_build_that_replaces_it(shop: Shop) -> None:
    parent = shop.build(plain_items(50), []).snapshot
    (shop.out / parent / names.MANIFEST).write_text("{")
    assert shop.build(plain_items(5), []).parent == parent
    assert "the parent cannot be read, so its number of items is no gate" in shop.notes[0]


def test_a_damaged_shard_is_said_and_encoded_again(shop: Shop) -> None:
    shop.build(plain_items(100), [])
    next(shop.settings.vector_store.rglob("*.vectors.npy")).write_bytes(b"")
    summary = shop.build(plain_items(100), [])
    assert 0 < summary.encoded <= 64
    assert "its texts are encoded again" in shop.notes[0]


def test_errors_of_the_user_are_of_one_tree(shop: Shop) -> None:
    with pytest.raises(BuildError, match=r"no column 'title' for title"):
        shop.build([{"item_id": "1", "name": "thing"}], [])


_CHILD = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from indexer.job import build
from indexer.progress import PlainLines
from indexer.settings import IndexSettings
settings = IndexSettings.model_validate_json(sys.argv[1])
folder = Path(sys.argv[2])
build(settings, folder / "catalogue.parquet", folder / "events.jsonl", folder / "snapshots",
      now=datetime.now(UTC), reporter=PlainLines(sys.stdout))
"""


@pytest.mark.parametrize("stage", ["encode", "learn", "publish"])
def test_a_build_that_is_killed_leaves_the_old_snapshot_or_the_new_one_whole(shop: Shop, stage: str) -> None:
    old = shop.build(plain_items(150), []).snapshot
    items = [{**item, "title": f"new {item['title']}"} for item in plain_items(150)]
    write(shop.folder / "catalogue.parquet", items)
    write(shop.folder / "events.jsonl", plain_events(150, 300))
    command = [sys.executable, "-c", _CHILD, shop.settings.model_dump_json(), str(shop.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(f"{stage}: done"):
                child.kill()
                break
    current = shop.current()
    assert (current.id == old) == (stage != "publish")
    summary = shop.build(items, [])
    assert summary.encoded == 0, "what the killed build encoded is kept"
    assert not list(shop.out.glob(".building-*"))
    assert not list(shop.out.glob(".staging-*"))
