from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import faiss
import numpy as np
import pyarrow.parquet as pq
import pytest

from fallback.ladder import Reason
from indexer.contract.items import Mask, Rows
from indexer.contract.manifest import (
    ID_INDEX,
    INDEX,
    ITEMS,
    NEIGHBOURS,
    POPULAR,
    RANKER,
    SESSION_TOWER,
    SIMILARITIES,
    VECTORS,
)
from indexer.contract.snapshot import SnapshotError
from services.feed.filters import NO_REGION
from services.feed.loaded import Loaded
from tests.damage import flip_byte, replace_file, rewrite_manifest
from tests.feed.shops import open_shop, reload
from tests.snapshots import WEIGHTS, Shop, linear_ranker, publish_shop, session_tower

SHOP = Shop(count=12, dimension=4, hidden=frozenset({1}), regional=frozenset({2, 3}), tower=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / publish_shop(tmp_path, SHOP)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return open_shop(tmp_path_factory.mktemp("snapshots"), SHOP)


def refused(folder: Path, why: str) -> None:
    with pytest.raises(SnapshotError, match=f"snapshot {folder.name}(?s:.*){why}"):
        reload(folder, whole=True)


def test_a_whole_snapshot_lacks_nothing(loaded: Loaded) -> None:
    assert loaded.reasons == ()
    assert loaded.ranker_id == "linear-7"
    assert replace(loaded, previous=True).reasons == (Reason.PREVIOUS_SNAPSHOT,)


@pytest.mark.parametrize(
    ("name", "reasons"),
    [
        (INDEX, (Reason.NO_INDEX,)),
        (VECTORS, (Reason.NO_INDEX,)),
        (SESSION_TOWER, (Reason.NO_INDEX,)),
        (NEIGHBOURS, (Reason.NO_NEIGHBOURS,)),
        (SIMILARITIES, (Reason.NO_NEIGHBOURS,)),
        (RANKER, (Reason.NO_RANKER,)),
    ],
)
def test_without_a_file_that_popularity_does_not_need_it_stands_on_a_lower_rung(
    folder: Path, name: str, reasons: tuple[Reason, ...]
) -> None:
    flip_byte(folder / name)
    assert reload(folder).reasons == reasons


@pytest.mark.parametrize("name", [ITEMS, ID_INDEX, POPULAR])
def test_without_what_popularity_needs_it_is_refused_by_name(folder: Path, name: str) -> None:
    flip_byte(folder / name)
    refused(folder, f"{name}: its sha256")


def npy(array: np.ndarray) -> bytes:
    file = BytesIO()
    np.save(file, array)
    return file.getvalue()


def neighbours_with(folder: Path, place: int, number: int) -> bytes:
    array = np.load(folder / NEIGHBOURS)
    array[place] = number
    return npy(array)


def popular_rows_beyond(folder: Path) -> bytes:
    table = pq.read_table(folder / POPULAR)
    file = BytesIO()
    pq.write_table(table.set_column(2, "row", [np.full(table.num_rows, 12, np.int32)]), file)
    return file.getvalue()


def smaller_index() -> bytes:
    index = faiss.IndexFlatIP(4)
    index.add(np.ones((11, 4), np.float32))
    return faiss.serialize_index(index).tobytes()


@pytest.mark.parametrize(
    "name", [ITEMS, ID_INDEX, POPULAR, VECTORS, INDEX, NEIGHBOURS, SIMILARITIES, SESSION_TOWER, RANKER]
)
def test_garbage_that_has_the_right_checksum_is_refused(folder: Path, name: str) -> None:
    replace_file(folder, name, b"garbage")
    refused(folder, "refused: ")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (VECTORS, Reason.NO_INDEX),
        (INDEX, Reason.NO_INDEX),
        (SESSION_TOWER, Reason.NO_INDEX),
        (NEIGHBOURS, Reason.NO_NEIGHBOURS),
        (SIMILARITIES, Reason.NO_NEIGHBOURS),
        (RANKER, Reason.NO_RANKER),
    ],
)
def test_garbage_that_popularity_does_not_need_is_left_out_when_need_be(
    folder: Path, name: str, reason: Reason
) -> None:
    replace_file(folder, name, b"garbage")
    assert reload(folder).reasons == (reason,)


def test_what_a_faulty_builder_left_is_refused_by_name(folder: Path) -> None:
    for name, data, why in (
        (ID_INDEX, npy(np.zeros((2, 11), np.uint64)), r"id_index\.npy: uint64 \(2, 11\), expected uint64 \(2, 12\)"),
        (POPULAR, popular_rows_beyond(folder), r"popular\.parquet: row: outside 0 to 11"),
        (VECTORS, npy(np.ones((12, 3), np.float16)), r"vectors\.npy: float16 \(12, 3\), expected float16 12x4"),
        (VECTORS, npy(np.ones((12, 4), np.float32)), r"vectors\.npy: float32"),
        (VECTORS, npy(np.ones(48, np.float16)), r"vectors\.npy: float16 \(48,\), expected float16 12x4"),
        (NEIGHBOURS, npy(np.zeros((12, 8), np.int32)), r"neighbours\.npy: int32 \(12, 8\), expected int32 K"),
        (NEIGHBOURS, npy(np.zeros(11, np.int32)), r"int32 \[11\] and float16 \[\d+\], expected \[12 \+ 1 \+ E\]"),
        (NEIGHBOURS, neighbours_with(folder, 0, 1), r"neighbours\.npy: lists that do not follow one another"),
        (NEIGHBOURS, npy(np.zeros(12, np.int64)), r"neighbours\.npy: int64"),
        (NEIGHBOURS, neighbours_with(folder, -1, 12), r"neighbours\.npy: a row outside 0 to 11"),
        (NEIGHBOURS, neighbours_with(folder, -1, -1), r"neighbours\.npy: a row outside 0 to 11"),
        (
            SIMILARITIES,
            npy(np.ones(7, np.float16)),
            r"int32 \[\d+\] and float16 \[7\], expected \[12 \+ 1 \+ E\]",
        ),
        (
            SIMILARITIES,
            npy(np.load(folder / SIMILARITIES) * np.nan),
            r"similarities\.npy: a number is not finite",
        ),
        (SESSION_TOWER, session_tower(3, 7), "SessionTower|session_tower|dimension"),
        (SESSION_TOWER, linear_ranker(WEIGHTS), r"session_tower\.onnx: has inputs \['features'\]"),
        (INDEX, smaller_index(), r"index\.faiss: 11 x 4, expected 12 x 4"),
        (RANKER, linear_ranker(WEIGHTS).replace(b"scores", b"others"), "the manifest declares"),
    ):
        whole = (folder / name).read_bytes()
        replace_file(folder, name, data)
        refused(folder, why)
        replace_file(folder, name, whole)
    assert reload(folder).reasons == ()


def test_another_number_of_items_than_the_manifest_says_is_refused(folder: Path) -> None:
    rewrite_manifest(folder, lambda manifest: manifest.update(items=13))
    refused(folder, r"items\.parquet: 12 items, the manifest says 13")


@pytest.mark.parametrize("scores", [[0.5], [float("nan")], [1.0] * 13])
def test_an_index_that_answers_otherwise_than_when_built_is_refused(folder: Path, scores: list[float]) -> None:
    rewrite_manifest(folder, lambda manifest: manifest["golden"][0].update(top_scores=scores))
    refused(folder, "golden query 0 is answered otherwise")


def test_a_golden_query_of_items_that_are_not_there_is_refused(folder: Path) -> None:
    rewrite_manifest(folder, lambda manifest: manifest["golden"][0].update(rows=[12]))
    refused(folder, "refused: ")


def test_an_index_of_other_vectors_is_refused_by_the_golden_queries(folder: Path) -> None:
    rng = np.random.default_rng(99)
    index = faiss.IndexFlatIP(4)
    index.add(rng.standard_normal((12, 4)).astype(np.float32))
    replace_file(folder, INDEX, faiss.serialize_index(index).tobytes())
    refused(folder, "golden query 0 is answered otherwise")


def test_hidden_items_and_other_regions_are_not_eligible(loaded: Loaded) -> None:
    assert np.flatnonzero(~loaded.eligible("", "")).tolist() == [1]
    assert np.flatnonzero(loaded.eligible("tea", "")).tolist() == [0, 3, 6, 9]
    assert np.flatnonzero(loaded.eligible("tea", "north")).tolist() == [0, 3, 6, 9]
    for unknown in ("mars", NO_REGION):
        assert np.flatnonzero(loaded.eligible("tea", unknown)).tolist() == [0, 6, 9]
        assert not loaded.knows_region(unknown)
    assert loaded.knows_region("north")


def test_without_regional_items_every_region_may_see_all(tmp_path: Path) -> None:
    shop = open_shop(tmp_path, replace(SHOP, regional=frozenset()))
    assert shop.eligible("", "mars").sum() == 11


def test_masks_cannot_be_changed_and_are_shared(loaded: Loaded) -> None:
    mask = loaded.eligible("tea", "")
    assert loaded.eligible("tea", "") is mask
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = False


def test_a_mask_is_made_once_however_many_threads_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = open_shop(tmp_path, SHOP)
    make, made, another = shop.items.eligible, [], threading.Event()

    def eligible(category: int | None, region: str, rows: Rows | None = None) -> Mask:
        made.append(region)
        if len(made) > 1:
            another.set()
        another.wait(0.1)
        return make(category, region, rows)

    monkeypatch.setattr(shop.items, "eligible", eligible)
    with ThreadPoolExecutor(4) as threads:
        masks = list(threads.map(lambda _: shop.eligible("", "north"), range(4)))
    assert made == ["north"]
    assert all(mask is masks[0] for mask in masks)
