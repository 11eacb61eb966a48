"""items.parquet in memory: what the service knows of each item, as columns. Row number = vector row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Rows = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


class Allowed(Protocol):
    """Says of rows int32 [c] which may be shown, bool [c]: a mask of all items does, and so does what looks at few."""

    def __getitem__(self, rows: Rows, /) -> Mask: ...


_Scalar = TypeVar("_Scalar", bound=np.generic)

SCHEMA = pa.schema(
    [
        pa.field("item_id", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("category", pa.string()),
        pa.field("brand", pa.string()),
        pa.field("price", pa.float32()),
        pa.field("available", pa.bool_(), nullable=False),
        pa.field("regions", pa.list_(pa.string())),
        pa.field("popularity", pa.float32(), nullable=False),
        pa.field("variant", pa.int32(), nullable=False),
    ]
)
"""`regions` null or empty: everywhere. `price` null: unknown. `popularity`: time-decayed, scaled to 0..1.
`variant`: number of the item's text; items with equal text are variants of one product."""

_SEPARATOR = "\x1f"
_NOWHERE = -1


class IdIndex:
    """Finds the rows of item ids: sorted 64-bit hashes beside their rows, memory-mapped; 16 bytes an item."""

    def __init__(self, table: npt.NDArray[np.uint64], ids: pa.ChunkedArray) -> None:
        self._hashes = table[0]
        self._rows = table[1]
        self._ids = ids

    def row(self, item_id: str) -> int | None:
        """The row of `item_id`, or None when the snapshot does not hold it."""
        wanted = np.uint64(hash_id(item_id))
        at = int(np.searchsorted(self._hashes, wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            row = int(self._rows[at])
            if self._ids[row].as_py() == item_id:
                return row
            at += 1
        return None

    def rows(self, item_ids: Sequence[str]) -> list[int | None]:
        """The same for many at once, in order; a third of the time."""
        if not item_ids or not len(self._hashes):
            return [None] * len(item_ids)
        wanted = np.array([hash_id(item_id) for item_id in item_ids], np.uint64)
        at = np.minimum(np.searchsorted(self._hashes, wanted), len(self._hashes) - 1)
        hits, first = (self._hashes[at] == wanted).tolist(), self._rows[at].tolist()
        return [
            (row if self._ids[row].as_py() == item_id else self.row(item_id)) if hit else None
            for item_id, hit, row in zip(item_ids, hits, first, strict=True)
        ]


def hash_id(item_id: str) -> int:
    """64-bit blake2b of the id's UTF-8 bytes."""
    return int.from_bytes(hashlib.blake2b(item_id.encode(), digest_size=8).digest(), "little")


def build_id_index(ids: Iterable[str], count: int) -> npt.NDArray[np.uint64]:
    """The table [2, count] of `IdIndex` for ids in row order."""
    hashes = np.fromiter((hash_id(item_id) for item_id in ids), dtype=np.uint64, count=count)
    order = np.argsort(hashes, kind="stable")
    return np.stack([hashes[order], order.astype(np.uint64)])


class ItemTable:
    """The items of a snapshot, column by column. n items; all arrays are read-only.

    `category` and `brand` int32 [n], index into `categories` and `brands` (-1: none); `variant` int32 [n], equal for
    items of equal text; `price` float32 [n], NaN when unknown; `available` bool [n]; `popularity` float32 [n] in 0..1.
    """

    def __init__(self, table: pa.Table, id_index: npt.NDArray[np.uint64]) -> None:
        self.count: int = table.num_rows
        self._ids = table["item_id"]
        self._titles = table["title"].combine_chunks().dictionary_encode()
        self._index = IdIndex(id_index, self._ids)
        self.price = _numpy(table["price"], np.float32, np.nan)
        self.available: Mask = _numpy(table["available"], np.bool_, False)
        self.popularity = _numpy(table["popularity"], np.float32, 0.0)
        self.variant: Rows = _numpy(table["variant"], np.int32, _NOWHERE)
        self.category, self.categories = _codes(table["category"])
        self.brand, self.brands = _codes(table["brand"])
        self._category_of = {name: code for code, name in enumerate(self.categories)}
        self._region_set, sets = _codes(_joined(table["regions"]))
        self._region_sets = [frozenset(text.split(_SEPARATOR)) for text in sets]
        self.regions: tuple[str, ...] = tuple(sorted(set().union(*self._region_sets)))

    @classmethod
    def load(cls, items: Path, id_index: Path) -> ItemTable:
        """Reads both files; the id index is memory-mapped. Raises ValueError when they cannot be what the job wrote."""
        table = pq.read_table(items, schema=SCHEMA)
        index = np.load(id_index, mmap_mode="r", allow_pickle=False)
        if index.dtype != np.uint64 or index.shape != (2, table.num_rows):
            raise ValueError(f"{id_index.name}: {index.dtype} {index.shape}, expected uint64 {(2, table.num_rows)}")
        for field in SCHEMA:
            if not field.nullable and (nulls := table[field.name].null_count):
                raise ValueError(f"{items.name}: {field.name}: {nulls} nulls, expected a value in every row")
        names = pc.list_flatten(table["regions"])
        if names.null_count or pc.any(pc.or_(pc.equal(names, ""), pc.match_substring(names, _SEPARATOR))).as_py():
            raise ValueError(f"{items.name}: regions: a null, an empty name or a control character in a list")
        loaded = cls(table, index)
        del table
        pa.default_memory_pool().release_unused()  # as much again as is kept: what was read and is not needed now
        return loaded

    def row(self, item_id: str) -> int | None:
        """The row of an item id, or None."""
        return self._index.row(item_id)

    def rows(self, item_ids: Iterable[str]) -> list[int]:
        """Rows of the ids that the snapshot holds, in order; unknown ids are left out."""
        return [row for row in self.each_row(list(item_ids)) if row is not None]

    def each_row(self, item_ids: Sequence[str]) -> list[int | None]:
        """The row of each id, None where the snapshot does not hold it."""
        return self._index.rows(item_ids)

    def item_id(self, row: int) -> str:
        """The id at a row, as given in the catalogue."""
        return str(self._ids[row].as_py())

    def title(self, row: int) -> str:
        """The title at a row."""
        return str(self._titles[row].as_py())

    def category_code(self, name: str) -> int | None:
        """The code of a category, or None when no item has it."""
        return self._category_of.get(name)

    def category_name(self, row: int) -> str:
        """The category at a row; empty when it has none."""
        code = int(self.category[row])
        return self.categories[code] if code >= 0 else ""

    def find(self, text: str, limit: int) -> list[int]:
        """Rows of available items whose title or id holds `text` (any case), most popular first."""
        in_title = pc.match_substring(self._titles.dictionary, text, ignore_case=True).take(self._titles.indices)
        in_id = pc.match_substring(self._ids, text, ignore_case=True).combine_chunks()
        rows = np.flatnonzero(pc.or_(in_title, in_id).to_numpy(zero_copy_only=False) & self.available)
        best = rows[np.argsort(-self.popularity[rows], kind="stable")]
        return [int(row) for row in best[:limit]]

    def eligible(self, category: int | None, region: str, rows: Rows | None = None) -> Mask:
        """bool [n]: available, of the category (None: any), and allowed in the region ("": any).

        Of `rows`, int32 [c], alone where they are given: bool [c].
        """
        at = slice(None) if rows is None else rows
        mask: Mask = self.available[at].copy()
        if category is not None:
            mask &= self.category[at] == category
        if region:
            allowed = np.array([region in names for names in self._region_sets] + [True])
            mask &= allowed[self._region_set[at]]
        return mask


def _numpy(column: pa.ChunkedArray, dtype: type[_Scalar], missing: object) -> npt.NDArray[_Scalar]:
    filled = column.fill_null(pa.scalar(missing, column.type)) if column.null_count else column
    array = np.asarray(filled.to_numpy(), dtype=dtype)
    array.setflags(write=False)
    return array


def _codes(column: pa.ChunkedArray) -> tuple[npt.NDArray[np.int32], Sequence[str]]:
    """Codes int32 [n] into the sorted distinct values; -1 for null (which picks the last element: see `eligible`)."""
    encoded = column.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    order = sorted(range(len(names)), key=names.__getitem__)
    rank = np.empty(len(names) + 1, np.int32)
    rank[order] = np.arange(len(names))
    rank[-1] = _NOWHERE
    codes = rank[encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)]
    codes.setflags(write=False)
    return codes, tuple(names[at] for at in order)


def _joined(regions: pa.ChunkedArray) -> pa.ChunkedArray:
    """One string per region list, null where the list is null or empty."""
    joined = pc.binary_join(regions, _SEPARATOR)
    return pc.if_else(pc.equal(joined, ""), pa.scalar(None, pa.string()), joined)
