"""The nightly job as a whole: real files in, a snapshot out, and nothing published that must not be."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from torch import nn

from indexer.contract import manifest as names
from indexer.contract.candidates import Shelf
from indexer.contract.items import ItemTable
from indexer.contract.publish import Locked, exclusive
from indexer.contract.snapshot import Snapshot, current_id, open_snapshot, snapshot_ids
from indexer.errors import BuildError, GateFailed, TooManyBadRows
from indexer.job import build
from indexer.learn import compress, list_training, rankers
from indexer.learn.lists import Lists, Scores
from indexer.progress import Silent
from indexer.settings import (
    AnnSettings,
    EncoderSettings,
    GateSettings,
    IndexSettings,
    LearnSettings,
    RankerSettings,
    TowersSettings,
)
from indexer.summary import BuildSummary
from tests.indexer.shop import NOW, plain_events, plain_items, write

LEARN = LearnSettings(
    min_sessions=200,
    train_questions=300,
    validate_questions=100,
    towers=TowersSettings(epochs=2, batch=64, places=10),
    teachers=("trees",),
    epochs=2,
)
"""Seconds."""
MODELS = {
    names.VECTORS,
    names.INDEX,
    names.NEIGHBOURS,
    names.SIMILARITIES,
    names.SESSION_TOWER,
    names.RANKER,
    names.TEACHER_SCORES,
}


class Shop:
    """A user's folder: files, settings, snapshots."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.out = folder / "snapshots"
        self.settings = IndexSettings(
            encoder=EncoderSettings(model=str(model), shard_size=64, batch_size=16),
            vector_store=folder / "vectors",
            learn=LEARN,
            ranker=RankerSettings(variants=("fp32", "int8")),
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


def test_a_shop_becomes_a_snapshot_whose_models_learned(shop: Shop) -> None:
    events = plain_events(300, 1500)
    summary = shop.build(plain_items(300), events, settings={"ann": AnnSettings(flat_up_to=50)})
    snapshot = shop.current()
    manifest = snapshot.manifest
    assert (summary.snapshot, summary.parent, summary.overridden) == (manifest.id, None, [])
    assert (summary.items, summary.distinct_texts, summary.encoded, summary.reused) == (300, 300, 300, 0)
    assert (summary.events, summary.sessions, summary.event_bad) == (len(events), 1500, 0)
    assert set(manifest.files) == MODELS | {
        names.ITEMS,
        names.ID_INDEX,
        names.POPULAR,
        names.REPORT,
        names.REPORT_PAGE,
    }
    items = ItemTable.load(snapshot.path(names.ITEMS), snapshot.path(names.ID_INDEX))
    assert [items.row(f"i{row}") for row in (0, 299)] == [0, 299]
    assert items.popularity.max() == 1.0
    vectors = np.load(snapshot.path(names.VECTORS))
    assert (vectors.shape, vectors.dtype, manifest.dimension) == ((300, 128), np.float16, 128)
    assert manifest.index.recall_at_500 >= 0.95
    assert len(manifest.golden) == 8
    assert (manifest.query.kind, manifest.query.places) == ("session_tower", 10)
    assert manifest.last_event == max(each["occurred_at"] for each in events)
    session = manifest.evaluation["session"]
    assert manifest.evaluation["questions"] == pytest.approx(120, abs=2)
    assert session["two_stage"]["ndcg_at_10"] > session["popularity"]["ndcg_at_10"]
    assert session["blend"]["recall_at_500"] > 0.9, "of 300 items"
    report = json.loads(snapshot.path(names.REPORT).read_bytes())
    assert report["evaluation"] == manifest.evaluation
    assert set(report["learning"]["validation"]) == {"trees", "student_labels", "student_distilled"}
    assert [row["name"] for row in report["learning"]["compression"]] == ["fp32", "int8"]
    soft = pq.read_table(snapshot.path(names.TEACHER_SCORES))
    assert np.isfinite(soft["score"].to_numpy()).all()
    assert set(summary.seconds) >= {"catalogue", "events", "encode", "towers", "neighbours", "index", "publish"}


def test_the_same_events_are_not_learned_from_twice(shop: Shop) -> None:
    items, events = plain_items(120), plain_events(120, 600)
    first = shop.build(items, events)
    hidden = [{**item, "available": at > 9} for at, item in enumerate(items)]
    second = shop.build(hidden, events)
    assert (first.taken_over, second.taken_over) == (False, True)
    assert (second.available, second.evaluation) == (110, first.evaluation)
    assert "towers" not in second.seconds
    kept, taken = (open_snapshot(shop.out / each.snapshot).require_whole() for each in (first, second))
    assert {name: kept.manifest.files[name] for name in MODELS} == {name: taken.manifest.files[name] for name in MODELS}
    third = shop.build(items, plain_events(120, 601))
    assert not third.taken_over


def test_a_strong_ranker_is_published_where_one_is_wanted(shop: Shop) -> None:
    shop.build(
        plain_items(120),
        plain_events(120, 600),
        settings={"learn": LEARN.model_copy(update={"strong_ranker": True, "epochs": 1})},
    )
    manifest = shop.current().manifest
    assert manifest.strong_ranker is not None
    assert manifest.strong_ranker.kind == "listwise"
    assert manifest.cascade is not None
    assert manifest.cascade.strong_ms > 0
    assert names.STRONG_RANKER in manifest.files


def test_no_ranker_within_the_floor_stops_the_build_and_the_parent_stays(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = shop.build(plain_items(120), []).snapshot
    monkeypatch.setattr(compress, "onnx_scores", lambda model, lists: np.full(lists.rows.shape, np.nan, np.float32))
    with pytest.raises(GateFailed, match=r"ranker\.floor: no ranker loses at most 0\.50%"):
        shop.build(plain_items(120), plain_events(120, 600), force=True)
    assert shop.current().id == parent


def test_a_damaged_parent_gives_no_models(shop: Shop) -> None:
    items, events = plain_items(120), plain_events(120, 600)
    first = shop.build(items, events)
    vectors = shop.out / first.snapshot / names.VECTORS
    vectors.chmod(0o644)
    vectors.write_bytes(b"")
    assert not shop.build(items, events).taken_over
    assert any("the parent's cannot be taken over" in note and names.VECTORS in note for note in shop.notes)
    assert shop.current().manifest.parent == first.snapshot


def test_a_child_is_measured_beside_its_parent_on_what_came_after_it(shop: Shop) -> None:
    events = plain_events(120, 900)
    until = NOW - timedelta(days=12)
    settings = {"gates": GateSettings(min_sessions=100)}
    parent = shop.build(plain_items(120), events, until=until, settings=settings)
    items = [{"item_id": "new", "title": "new thing"}, *plain_items(120)]
    child = shop.build(items, events, settings=settings)
    assert child.parent == parent.snapshot
    assert datetime.fromisoformat(child.evaluation["windows"]["evaluate"]) >= until
    assert child.evaluation["parent"]["ndcg_at_10"] == pytest.approx(
        child.evaluation["session"]["two_stage"]["ndcg_at_10"], abs=0.1
    ), "the same events, other rows"


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
    assert summary.evaluation["questions"] == 0
    assert summary.learning["why"] == "0 sessions with two items, index.learn.min_sessions is 200"
    assert summary.ranker["kind"] == "blend-order"
    snapshot = shop.current()
    assert snapshot.manifest.golden
    assert pq.read_table(snapshot.path(names.POPULAR)).num_rows >= len(items)


def test_ids_keep_their_zeros_to_the_end(shop: Shop) -> None:
    shop.build([{"item_id": each, "title": f"thing {each}"} for each in ("007", "7")], [], kind="csv")
    snapshot = shop.current()
    items = ItemTable.load(snapshot.path(names.ITEMS), snapshot.path(names.ID_INDEX))
    assert (items.row("007"), items.row("7"), items.row("07")) == (0, 1, None)


def test_two_builds_of_one_shop_by_one_thread_are_the_same_but_for_id_and_times(shop: Shop) -> None:
    items, events = plain_items(150), plain_events(150, 400)
    settings = {"ann": AnnSettings(flat_up_to=50)}
    manifests = []
    for name in ("one", "two"):  # folders of their own: else the second would take over the models of the first
        shop.out = shop.folder / name
        shop.build(items, events, settings=settings)
        manifests.append(shop.current().manifest)
        for timed in (names.REPORT, names.REPORT_PAGE):
            manifests[-1].files.pop(timed)
    assert manifests[0].model_dump(exclude={"id", "seal"}) == manifests[1].model_dump(exclude={"id", "seal"})


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


def test_a_ranker_that_ranks_below_the_blend_is_held_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ranker that learned from other shoppers than those of the evaluation: here, it scores the other way round."""

    def reversed_score(module: nn.Module, lists: Lists) -> Scores:
        return -list_training.score(module, lists)

    monkeypatch.setattr(rankers, "score", reversed_score)
    settings = {"gates": GateSettings(ranker_tolerance=0, min_sessions=20)}
    with pytest.raises(GateFailed, match=r"NDCG@10 of the ranker: .* \(index.gates.ranker_tolerance\)"):
        shop.build(plain_items(120), plain_events(120, 600), settings=settings)
    assert current_id(shop.out) is None


def test_training_and_serving_that_differ_are_held_back(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    of = Shelf.of

    def other_prices(items: ItemTable, *rest: Any) -> Shelf:
        items.price = items.price + 5
        return of(items, *rest)

    monkeypatch.setattr(Shelf, "of", other_prices)
    with pytest.raises(GateFailed, match=r"skew: scores of training and serving differ by"):
        shop.build(plain_items(120), plain_events(120, 600), force=True)
    assert snapshot_ids(shop.out) == []


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
    assert "the parent cannot be read, so neither its items nor its ranking is a gate" in shop.notes[0]


def test_a_damaged_shard_is_said_and_encoded_again(shop: Shop) -> None:
    shop.build(plain_items(100), [])
    next(shop.settings.vector_store.rglob("*.vectors.npy")).write_bytes(b"")
    summary = shop.build(plain_items(100), [])
    assert 0 < summary.encoded <= 64
    assert "its texts are encoded again" in shop.notes[0]


def test_errors_of_the_user_are_of_one_tree(shop: Shop) -> None:
    with pytest.raises(BuildError, match=r"no column 'title' for title"):
        shop.build([{"item_id": "1", "name": "thing"}], [])
