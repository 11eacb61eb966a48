"""The conversion of Complete Journey. Skipped where its package is not installed."""

from __future__ import annotations

import importlib.util

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from indexer.text import CONTENT_TEXT
from services.demo.dataset import (
    CATALOGUE_SCHEMA,
    EVENTS_SCHEMA,
    PACKAGE,
    REGIONS,
    Dataset,
    catalogue_table,
    events_table,
    one_spelling,
    prepare,
)

pytestmark = pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason=f"{PACKAGE} is not installed")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepare(tmp_path_factory.mktemp("journey"))


def test_every_product_is_an_item_and_equal_texts_are_equal_for_the_job(dataset: Dataset) -> None:
    with duckdb.connect() as db:
        db.execute(CONTENT_TEXT)
        counted = db.execute(
            "select count(*), count(distinct item_id), "
            "count(distinct content_text(title, category, brand, description)) from read_parquet(?)",
            [str(dataset.catalogue)],
        ).fetchone()
    assert counted == (92_331, 92_331, 20_673)
    assert dataset.items == 92_331


def test_what_sold_nothing_is_left_out_and_an_event_id_is_unique(dataset: Dataset) -> None:
    events = pq.read_table(dataset.events)
    assert (events.num_rows, dataset.purchases, dataset.dropped) == (1_460_438, 1_460_438, 8_869)
    assert pc.count_distinct(events["event_id"]).as_py() == events.num_rows
    assert sum(column.null_count for column in events.columns) == 0
    assert pc.unique(events["type"]).to_pylist() == ["purchase"]
    assert set(pc.unique(events["region"]).to_pylist()) == set(REGIONS)


def test_regions_call_themselves_simulated_and_a_store_keeps_its_region() -> None:
    assert all(name.endswith("(simulated)") for name in REGIONS)
    regions = events_table(sales([(1, 7, 1.0, 330), (2, 7, 1.0, 406), (3, 8, 1.0, 330)]))["region"].to_pylist()
    assert regions[0] == regions[2]


def test_nothing_is_invented(dataset: Dataset) -> None:
    items = pq.read_table(dataset.catalogue)
    assert pc.all(items["available"]).as_py()
    assert items["regions"].null_count == items.num_rows
    assert items["price"].null_count == 24_174  # never sold, or not sold by the piece
    assert pc.min(items["price"]).as_py() >= 0.01


def test_the_files_are_made_once_and_again_when_one_is_damaged(dataset: Dataset) -> None:
    assert dataset.converted
    folder = dataset.catalogue.parent
    assert not prepare(folder).converted
    whole = dataset.catalogue.read_bytes()
    dataset.catalogue.write_bytes(whole[: len(whole) // 2])
    assert prepare(folder).converted
    assert dataset.catalogue.read_bytes() == whole
    assert sorted(path.name for path in folder.iterdir()) == ["catalogue.parquet", "events.parquet"]


def test_the_price_is_the_median_of_the_unit_prices() -> None:
    sold = sales([(1, 7, 2.0, 1), (2, 7, 6.0, 1), (3, 7, 3.0, 1), (4, 8, 1.0, 1), (5, 8, 2.0, 1), (6, 9, 0.001, 1)])
    products = pa.table(
        {
            "product_id": [7, 8, 9, 10],
            "department": ["GROCERY"] * 4,
            "brand": ["National", "Private", "National", None],
            "product_category": ["BREAD", "BREAD", None, None],
            "product_type": ["BREAD:ITALIAN/FRENCH", None, None, None],
            "package_size": ["6-12 OZ", None, "1 LB", None],
        },
        schema=pa.schema(
            [
                ("product_id", pa.int64()),
                *((name, pa.string()) for name in ("department", "brand", "product_category")),
                *((name, pa.string()) for name in ("product_type", "package_size")),
            ]
        ),
    )
    items = catalogue_table(products, sold)
    assert items.schema == CATALOGUE_SCHEMA
    assert items["price"].to_pylist() == [3.0, 1.5, None, None]
    assert items["title"].to_pylist() == ["Bread: Italian/French, 6/12 OZ", "Bread", "Grocery, 1 LB", "Grocery"]


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ("6-12 OZ", "6/12 OZ"),
        ("6 / 12 OZ", "6/12 OZ"),
        ("6 PK/12 OZ", "6 PK 12 OZ"),
        ("12_OZ", "12 OZ"),
        ("10-STEMS", "10-STEMS"),
        (".5 OZ", ".5 OZ"),
    ],
)
def test_a_size_is_spelled_one_way(given: str, spelled: str) -> None:
    assert one_spelling(given) == spelled


def sales(rows: list[tuple[int, int, float, int]]) -> pa.Table:
    """Rows of (basket, product, sales value, store), one piece each."""
    baskets, products, values, stores = zip(*rows, strict=True)
    count = len(rows)
    return pa.table(
        {
            "household_id": [1] * count,
            "store_id": stores,
            "basket_id": baskets,
            "product_id": products,
            "quantity": [1] * count,
            "sales_value": values,
            "transaction_timestamp": pa.array([1_483_271_606_000_000] * count, pa.timestamp("us")),
        }
    )


def test_events_have_the_columns_of_the_job() -> None:
    events = events_table(sales([(31198570044, 1095275, 0.5, 330)]))
    assert events.schema == EVENTS_SCHEMA
    (event,) = events.to_pylist()
    assert event["event_id"] == "31198570044-1095275"
    assert event["occurred_at"].isoformat() == "2017-01-01T11:53:26+00:00"
