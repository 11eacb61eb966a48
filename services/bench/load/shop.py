"""What requests are made of: the items of a snapshot by popularity, their categories, the regions."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from indexer.contract.manifest import ITEMS
from indexer.contract.snapshot import current_id
from services.errors import StartError

_SYNTHETIC = "synthetic"
_TIMEOUT_S = 10.0
_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Shop:
    """Available items, most popular first: `ids` and `categories` (null: none), n each. `regions`: those that items
    name. `synthetic`: the items were made up, so that figures are those of a made-up catalogue."""

    snapshot_id: str
    ids: pa.Array
    categories: pa.Array
    regions: tuple[str, ...]
    synthetic: bool

    def __len__(self) -> int:
        return len(self.ids)


def of_snapshots(root: Path) -> Shop:
    """Of the snapshot that CURRENT names. Raises StartError when there is none or no item in it is available."""
    snapshot_id = current_id(root)
    if snapshot_id is None:
        raise StartError(f"{root}: no snapshot is published there (no CURRENT)")
    path = root / snapshot_id / ITEMS
    columns = ["item_id", "category", "popularity", "available", "regions"]
    table = pq.read_table(path, columns=columns)
    said = b" ".join(key + b" " + value for key, value in (pq.read_schema(path).metadata or {}).items())
    table = table.filter(table["available"]).combine_chunks()
    order = np.argsort(-table["popularity"].to_numpy(), kind="stable")
    regions = pc.unique(pc.list_flatten(table["regions"])).to_pylist()
    best = table.select(["item_id", "category"]).take(pa.array(order)).combine_chunks()
    ids = _checked(_whole(best["item_id"]), str(path))
    return Shop(
        snapshot_id=snapshot_id,
        ids=ids,
        categories=_whole(best["category"]),
        regions=tuple(sorted(region for region in regions if region)),
        synthetic=_SYNTHETIC.encode() in said or _named_synthetic(ids),
    )


async def of_console(address: str) -> Shop:
    """The most popular 100 items that a running service's console tells of. Raises StartError when it does not."""
    url = f"{address.rstrip('/')}/v1/items?limit={_LIMIT}"
    if not url.startswith(("http://", "https://")):
        raise StartError(f"console: expected http://host:port, got {address!r}")
    try:
        found = await asyncio.to_thread(_fetch, url)
        ids, categories = zip(*((one["item_id"], one["category"] or None) for one in found["items"]), strict=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StartError(f"console: {url}: no items could be read: {error}") from error
    array = _checked(pa.array(ids, pa.string()), url)
    return Shop(str(found["snapshot_id"]), array, pa.array(categories, pa.string()), (), _named_synthetic(array))


def _fetch(url: str) -> dict[str, list[dict[str, str]]]:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310 (checked: http or https)
        found: dict[str, list[dict[str, str]]] = json.load(answer)
        return found


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _checked(ids: pa.Array, where: str) -> pa.Array:
    if not len(ids):
        raise StartError(f"{where}: no item is available")
    return ids


def _named_synthetic(ids: Sequence[pa.Scalar]) -> bool:
    return str(ids[0]).startswith(_SYNTHETIC)
