"""Popularity by region and category, in process memory: answers without I/O, whatever else is broken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fallback.ladder import Rung
from indexer.contract import popular
from indexer.contract.items import Rows

_ListKey = tuple[str | None, str | None]
_List = tuple[Rows, npt.NDArray[np.float32]]


class Popular:
    """The popularity lists of one snapshot, loaded before the service is ready."""

    def __init__(self, lists: dict[_ListKey, _List]) -> None:
        self._lists = lists
        self.regions = frozenset(region for region, _ in lists if region is not None)

    @classmethod
    def load(cls, path: Path, items: int) -> Popular:
        """Reads popular.parquet; entries of one (region, category) stand together, best first.

        Raises ValueError on a row outside 0..items-1 or a score that is not finite.
        """
        table = popular.read(path)
        rows = table["row"].to_numpy()
        scores = table["score"].to_numpy()
        if len(rows) and (rows.min() < 0 or rows.max() >= items):
            raise ValueError(f"{path.name}: row: outside 0 to {items - 1}")
        if not np.isfinite(scores).all():
            raise ValueError(f"{path.name}: score: not finite")
        lists: dict[_ListKey, _List] = {}
        for key, start, stop in _runs(table):
            lists[key] = (rows[start:stop], scores[start:stop])
        return cls(lists)

    def ladder(self, region: str, category: str) -> Iterator[tuple[Rung, Rows, npt.NDArray[np.float32]]]:
        """The lists that answer for a region and a category ("": all), in the order in which to fall:
        rung, rows int32 [m], scores float32 [m].

        Without a category there is no POPULAR_CATEGORY rung; with one, the overall list comes last.
        """
        wanted: list[tuple[Rung, str | None, str | None]] = []
        if category:
            wanted += [(Rung.POPULAR_CATEGORY, region or None, category), (Rung.POPULAR_CATEGORY, None, category)]
        wanted += [(Rung.POPULAR, region or None, None), (Rung.POPULAR, None, None)]
        for rung, in_region, in_category in dict.fromkeys(wanted):
            found = self._lists.get((in_region, in_category))
            if found is not None:
                yield rung, *found


def _runs(table: pa.Table) -> Iterator[tuple[_ListKey, int, int]]:
    """(region, category) with the first and last+1 entry of its list."""
    if table.num_rows == 0:
        return
    keys = table.select(["region", "category"]).combine_chunks()
    region, category = (keys[name].combine_chunks().dictionary_encode() for name in ("region", "category"))
    codes = np.stack([part.indices.fill_null(-1).to_numpy(zero_copy_only=False) for part in (region, category)])
    starts = np.concatenate([[0], np.flatnonzero((codes[:, 1:] != codes[:, :-1]).any(axis=0)) + 1, [codes.shape[1]]])
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        yield (table["region"][start].as_py(), table["category"][start].as_py()), start, stop
