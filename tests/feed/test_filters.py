"""What may be shown is asked of few rows, never of the whole catalogue, on the event loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from indexer.contract.ann_index import mask_of
from indexer.contract.items import SCHEMA, ItemTable, Mask, Rows, build_id_index
from services.feed import filters
from services.feed.filters import DEEPEST, NO_REGION, Filters
from tests.feed.shops import open_shop
from tests.snapshots import CATEGORIES, Shop

MANY = 1_000_000


def items(count: int, categories: int, seed: int = 1) -> ItemTable:
    """Items of random category, popularity and region (a third each: everywhere, north, south); a tenth hidden."""
    rng = np.random.default_rng(seed)
    regions = pa.array([None, ["north"], ["south"]]).take(pa.array(rng.integers(0, 3, count)))
    table = pa.table(
        {
            "item_id": pa.array(np.arange(count).astype(str)),
            "title": pa.array(np.full(count, "x")),
            "category": pa.array(rng.integers(0, categories, count).astype(str)),
            "brand": pa.nulls(count, pa.string()),
            "price": pa.nulls(count, pa.float32()),
            "available": pa.array(rng.random(count) < 0.9),
            "regions": regions,
            "popularity": pa.array(rng.random(count).round(3).astype(np.float32)),
            "variant": pa.array(np.arange(count, dtype=np.int32)),
        },
        schema=SCHEMA,
    )
    return ItemTable(table, build_id_index((), 0))


@pytest.fixture(scope="module")
def some() -> ItemTable:
    return items(20_000, 5)


@pytest.mark.parametrize("category", ["", "3", "unheard of"])
@pytest.mark.parametrize("region", ["", "north", "mars", NO_REGION])
def test_few_rows_are_allowed_as_the_mask_of_all_says(some: ItemTable, category: str, region: str) -> None:
    found = Filters(some)
    rows = np.random.default_rng(2).integers(0, some.count, 700).astype(np.int32)
    mask = found.mask(category, region)
    assert found.rows(category, region)[rows].tolist() == mask[rows].tolist()
    best = found.most_popular(category, region)
    allowed = np.flatnonzero(mask)
    order = allowed[np.argsort(-some.popularity[allowed], kind="stable")]
    assert best.tolist() == order[:DEEPEST].tolist()


@pytest.mark.parametrize("category", ["", "3", "unheard of"])
@pytest.mark.parametrize("region", ["", "north", "mars"])
@pytest.mark.parametrize("few", [0, 1 << 16])
def test_what_may_be_found_is_the_same_as_rows_and_as_a_mask(
    some: ItemTable, monkeypatch: pytest.MonkeyPatch, category: str, region: str, few: int
) -> None:
    monkeypatch.setattr(filters, "_FEW", few)
    found = Filters(some)
    among = found.among(category, region)
    assert found.among(category, region) is among
    assert np.array_equal(mask_of(among, some.count), found.mask(category, region))
    assert (among.dtype == np.bool_) == (category != "3" or few == 0)
    with pytest.raises(ValueError, match="read-only"):
        among[0:1] = 0


def test_rows_beyond_the_most_popular_are_found_when_those_do_not_suffice(
    some: ItemTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Filters(some).most_popular("", "north")
    monkeypatch.setattr(filters, "_HEAD", 3000)
    assert Filters(some).most_popular("", "north").tolist() == whole.tolist()


def test_masks_are_kept_as_far_as_their_bytes_go(some: ItemTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "_MASK_BYTES", 3 * some.count)
    found = Filters(some)
    masks = [found.mask(str(category), "") for category in range(4)]
    assert found.mask("3", "") is masks[3]
    assert found.mask("0", "") is not masks[0]
    monkeypatch.setattr(filters, "_MASK_BYTES", some.count - 1)
    small = Filters(some)
    assert small.mask("0", "") is not small.mask("0", "")


def test_the_event_loop_looks_at_no_more_items_than_it_asks_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a million items in a thousand categories: the rows given, and those of one category."""
    table = items(MANY, 1000)
    found = Filters(table)
    whole, looked_at = table.eligible, []

    def eligible(category: int | None, region: str, rows: Rows | None = None) -> Mask:
        looked_at.append(table.count if rows is None else len(rows))
        return whole(category, region, rows)

    monkeypatch.setattr(table, "eligible", eligible)
    assert len(found.rows("7", "north")[np.arange(500, dtype=np.int32)]) == 500
    assert 400 < len(found.most_popular("7", "north")) < 1200
    assert len(found.most_popular("", "north")) == DEEPEST
    assert looked_at[0] == 500
    assert looked_at[1] == np.count_nonzero(table.category == table.category_code("7"))
    assert looked_at[2] <= 65_536
    assert len(looked_at) == 3


def test_what_the_ladder_shows_makes_no_mask(tmp_path: Path) -> None:
    shop = open_shop(tmp_path, Shop(count=60, dimension=4))
    kept = len(shop.filters._masks)
    assert len(shop.popular_rows(CATEGORIES[0], "", 10)) == 10
    assert len(shop.tail(CATEGORIES[0], "")[0]) == 20
    assert len(shop.filters._masks) == kept
