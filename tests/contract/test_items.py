from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract import items
from indexer.contract.items import SCHEMA, ItemTable, build_id_index
from tests.properties import examples

ID = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
IDS = st.lists(ID, min_size=1, max_size=40, unique=True)
REGIONS = st.one_of(st.none(), st.lists(st.sampled_from(["north", "south", "east"]), max_size=3, unique=True))


def columns(ids: Sequence[str], **given: list[Any]) -> pa.Table:
    count = len(ids)
    defaults: dict[str, list[Any]] = {
        "item_id": list(ids),
        "title": [f"Item {item_id}" for item_id in ids],
        "category": [None] * count,
        "brand": [None] * count,
        "price": [None] * count,
        "available": [True] * count,
        "regions": [None] * count,
        "popularity": [0.5] * count,
        "variant": list(range(count)),
    }
    return pa.table({**defaults, **given}, schema=SCHEMA)


def table(ids: Sequence[str], **given: list[Any]) -> ItemTable:
    return ItemTable(columns(ids, **given), build_id_index(ids, len(ids)))


@examples(150)
@given(IDS, st.text(max_size=8))
def test_every_id_is_found_as_it_was_given_and_no_other(ids: list[str], other: str) -> None:
    shop = table(ids)
    assert [shop.row(item_id) for item_id in ids] == list(range(len(ids)))
    assert [shop.item_id(row) for row in range(len(ids))] == ids
    assert (shop.row(other) is None) == (other not in ids)
    assert shop.each_row([other, *ids]) == [shop.row(other), *range(len(ids))]
    assert shop.each_row([]) == []


def test_ids_are_text_and_not_numbers() -> None:
    shop = table(["7", "007", "7.0", " 7", "\uff17"])
    assert [shop.row(text) for text in ("7", "007", "7.0", " 7", "\uff17", "07", "")] == [0, 1, 2, 3, 4, None, None]


def test_composed_and_decomposed_letters_are_two_ids() -> None:
    shop = table(["caf\u00e9", "cafe\u0301"])
    assert (shop.row("caf\u00e9"), shop.row("cafe\u0301")) == (0, 1)


@examples(60)
@given(IDS)
def test_ids_whose_hashes_collide_are_told_apart(ids: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "hash_id", lambda item_id: (1 << 64) - 1 - len(item_id) % 2)
        shop = table(ids)
        assert [shop.row(item_id) for item_id in ids] == list(range(len(ids)))
        assert shop.each_row(["nobody", *ids]) == [None, *range(len(ids))]
        assert shop.row("neither of them") is None


def test_unknown_ids_are_left_out_of_rows_and_the_order_is_kept() -> None:
    assert table(["a", "b", "c"]).rows(["c", "x", "a", "a"]) == [2, 0, 0]


def test_a_catalogue_of_one_item() -> None:
    shop = table(["only"], price=[2.5], category=["tea"])
    assert (shop.count, shop.row("only"), shop.row("other")) == (1, 0, None)
    assert shop.eligible(None, "").tolist() == [True]
    assert shop.category_name(0) == "tea"


def test_what_the_catalogue_does_not_say_is_missing_and_not_zero() -> None:
    shop = table(["a", "b"], price=[None, 0.0], category=[None, ""])
    assert np.isnan(shop.price[0])
    assert shop.price[1] == 0
    assert shop.category.tolist() == [-1, 0]
    assert shop.category_name(0) == ""
    assert shop.regions == ()
    assert shop.category_code("tea") is None


@examples(120)
@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from([None, "tea", "cups", "Ähre"]), REGIONS), min_size=1, max_size=30
    ),
    st.sampled_from([None, "tea", "cups", "Ähre"]),
    st.sampled_from(["", "north", "south", "nowhere"]),
    st.integers(1, 4),
)
def test_eligible_is_available_and_of_the_category_and_allowed_in_the_region(
    shop: list[tuple[bool, str | None, list[str] | None]], category: str | None, region: str, parts: int
) -> None:
    ids = [f"i{row}" for row in range(len(shop))]
    available, categories, regions = (list(column) for column in zip(*shop, strict=True))
    whole = columns(ids, available=available, category=categories, regions=regions)
    step = max(1, len(ids) // parts)
    chunked = pa.concat_tables([whole.slice(at, step) for at in range(0, len(ids), step)])
    items_table = ItemTable(chunked, build_id_index(ids, len(ids)))
    code = None if category is None else items_table.category_code(category)
    if category is not None and code is None:
        return
    wanted = [
        can and (category is None or category == of) and (not region or not where or region in where)
        for can, of, where in shop
    ]
    assert items_table.eligible(code, region).tolist() == wanted
    assert [items_table.category_name(row) for row in range(len(ids))] == [of or "" for of in categories]
    assert set(items_table.regions) == {name for where in regions for name in where or ()}


def test_items_know_their_brand_and_the_variants_of_their_product() -> None:
    shop = table(["a", "b", "c", "d"], brand=["Yun", None, "Assam", "Yun"], variant=[0, 1, 0, 2])
    assert shop.brands == ("Assam", "Yun")
    assert shop.brand.tolist() == [1, -1, 0, 1]
    assert shop.variant.tolist() == [0, 1, 0, 2]


def test_finding_is_literal_ignores_case_and_shows_the_most_popular_available_first() -> None:
    shop = table(
        ["a.1", "B2", "c3", "d4"],
        title=["Green TEA", "tea pot", "Cup", "Hidden tea"],
        available=[True, True, True, False],
        popularity=[0.1, 0.9, 0.5, 1.0],
    )
    assert shop.find("tea", 10) == [1, 0]
    assert shop.find("tea", 1) == [1]
    assert shop.find("b2", 10) == [1]
    assert shop.find(".", 10) == [0]
    assert shop.find(".*", 10) == []
    assert shop.find("", 10) == [1, 2, 0]


def test_columns_cannot_be_changed() -> None:
    shop = table(["a"], price=[1.0])
    for column in (shop.price, shop.available, shop.popularity, shop.category, shop.brand, shop.variant):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_a_table_comes_back_from_its_files(tmp_path: Path) -> None:
    save(tmp_path, columns(["a", "b"], regions=[["north"], []]), build_id_index(["a", "b"], 2))
    shop = load(tmp_path)
    assert shop.row("b") == 1
    assert shop.eligible(None, "south").tolist() == [False, True]


def test_an_id_index_of_another_catalogue_is_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, columns(["a", "b"]), build_id_index(["a", "b", "c"], 3))
    with pytest.raises(ValueError, match=r"id_index\.npy: uint64 \(2, 3\), expected uint64 \(2, 2\)"):
        load(tmp_path)


@pytest.mark.parametrize("column", ["variant", "available", "popularity", "title"])
def test_a_column_that_every_item_must_have_is_not_made_up(tmp_path: Path, column: str) -> None:
    save(tmp_path, columns(["a", "b"]).drop_columns([column]), build_id_index(["a", "b"], 2))
    with pytest.raises(ValueError, match=rf"items\.parquet: {column}: 2 nulls, expected a value in every row"):
        load(tmp_path)


@pytest.mark.parametrize("regions", [["north", None], [""], ["north", ""], ["north\x1fsouth"]])
def test_a_region_that_would_open_an_item_to_everyone_is_refused(tmp_path: Path, regions: list[str | None]) -> None:
    save(tmp_path, columns(["a"], regions=[regions]), build_id_index(["a"], 1))
    with pytest.raises(ValueError, match=r"items\.parquet: regions"):
        load(tmp_path)


def save(folder: Path, table: pa.Table, index: np.ndarray) -> None:
    pq.write_table(table, folder / "items.parquet")
    np.save(folder / "id_index.npy", index)


def load(folder: Path) -> ItemTable:
    return ItemTable.load(folder / "items.parquet", folder / "id_index.npy")
