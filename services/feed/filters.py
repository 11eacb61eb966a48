"""Which items may be shown in a category and a region: asked of few rows, or of all items at once."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from indexer.contract.items import ItemTable, Mask, Rows

NO_REGION = "\x00"
"""Stands for every region that the snapshot does not know; no request can spell it."""
_FILTERS = 1024
_MASK_BYTES, _ROW_BYTES = 32 << 20, 24 << 20
_FEW = 1 << 18
_HEAD = 1 << 16
DEEPEST = 2500
"""Items over all pages of one feed (2,000 at most), and those that a request excludes (500 at most)."""


class Filter:
    """The items of one category (None: any) and region ("": any) that are available, asked of rows: `allowed[rows]`."""

    __slots__ = ("_category", "_items", "_region")

    def __init__(self, items: ItemTable, category: int | None, region: str) -> None:
        self._items = items
        self._category = category
        self._region = region

    def __getitem__(self, rows: Rows, /) -> Mask:
        """bool [c] of rows int32 [c]; costs as many steps as there are rows."""
        return self._items.eligible(self._category, self._region, rows)


class Filters:
    """The filters of one snapshot. Safe to call from any thread.

    What is allowed is a mask, a byte an item, or where a category has few items their rows. Making a mask looks at
    every item: leave it to the compute thread. Masks are kept as far as 32 MiB go, rows as far as 24.
    """

    def __init__(self, items: ItemTable) -> None:
        self._items = items
        self._filters_lock, self._masks_lock = threading.Lock(), threading.Lock()
        self._filters: LRUCache[tuple[int | None, str], Filter] = LRUCache(_FILTERS)
        self._masks: LRUCache[tuple[int | None, str], Mask] = LRUCache(_MASK_BYTES, getsizeof=lambda mask: mask.nbytes)
        self._rows: LRUCache[tuple[int | None, str], Rows] = LRUCache(
            _ROW_BYTES, getsizeof=lambda rows: rows.nbytes + 64
        )
        popular = -items.popularity
        self._head = _best(popular, np.arange(items.count, dtype=np.int32), _HEAD)
        self._by_category = np.argsort(items.category, kind="stable").astype(np.int32)
        self._starts = np.searchsorted(items.category[self._by_category], np.arange(len(items.categories) + 1))

    def rows(self, category: str, region: str) -> Filter:
        """Asked of few rows. A region of no item allows the items that have no region of their own."""
        key = self._key(category, region)
        with self._filters_lock:
            found = self._filters.get(key)
            if found is None:
                found = self._filters[key] = Filter(self._items, *key)
        return found

    def mask(self, category: str, region: str) -> Mask:
        """bool [n], not to be written to."""
        key = self._key(category, region)
        with self._masks_lock:
            mask = self._masks.get(key)
            if mask is None:
                mask = self._items.eligible(*key)
                mask.setflags(write=False)
                if mask.nbytes <= _MASK_BYTES:
                    self._masks[key] = mask
        return mask

    def among(self, category: str, region: str) -> Mask | Rows:
        """What may be shown, not to be written to: bool [n], or rows int32, ascending, of a category of few items."""
        code, _ = key = self._key(category, region)
        if code is None or self._starts[code + 1] - self._starts[code] > _FEW:
            return self.mask(category, region)
        with self._masks_lock:
            rows = self._rows.get(key)
            if rows is None:
                rows = self._rows[key] = self._of_category(code, category, region)
        return rows

    def most_popular(self, category: str, region: str) -> Rows:
        """At most DEEPEST rows, int32, most popular first, equal ones by row.

        Looks at the items of the category or, without one, at the 65,536 most popular of all; at all items only where
        the region leaves fewer than DEEPEST of those.
        """
        allowed = self.rows(category, region)
        code, _ = self._key(category, region)
        if code is None:
            head = self._head[allowed[self._head]]
            if len(head) >= DEEPEST or len(self._head) == self._items.count:
                return head[:DEEPEST]
            rows = np.flatnonzero(self.mask(category, region)).astype(np.int32)
        else:
            rows = self._of_category(code, category, region)
        return _best(-self._items.popularity[rows], rows, DEEPEST)

    def _of_category(self, code: int, category: str, region: str) -> Rows:
        rows = self._by_category[self._starts[code] : self._starts[code + 1]]
        rows = rows[self.rows(category, region)[rows]]
        rows.setflags(write=False)
        return rows

    def _key(self, category: str, region: str) -> tuple[int | None, str]:
        if region not in self._items.regions:
            region = NO_REGION if region and self._items.regions else ""
        return self._items.category_code(category) if category else None, region


def _best(cost: npt.NDArray[np.float32], rows: Rows, count: int) -> Rows:
    """The `count` rows, int32, of the lowest cost float32, lowest first; equal ones in the order given."""
    if len(rows) > count:
        bound = np.partition(cost, count - 1)[count - 1]
        near = np.flatnonzero(cost <= bound)
        cost, rows = cost[near], rows[near]
    return rows[np.argsort(cost, kind="stable")][:count]
