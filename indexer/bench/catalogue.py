"""A synthetic catalogue of any size, fitted to a real one: `feedline bench catalogue`.

Texts come in families: one name in several sizes and brands. Names, sizes and brands are those of `texts`; how many
items share a text, and how many texts a family has, is drawn from the source, so that the share of distinct texts is
that of the source at any size: a larger catalogue is taken to be a wider one, not the same products listed more often.
What the source does not tell is set: AVAILABLE and RESTRICTED.

Rows are written in chunks; held in memory are 20 bytes an item. The same seed and count give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from indexer.bench.counted import Counted, Ints
from indexer.bench.shop import Shop

AVAILABLE = 0.95
RESTRICTED = 0.1
"""Share of the items that may be shown in two of the regions only."""
CLUSTERS = 16
"""Families of an aisle fall into as many; what is bought together comes from one of them more often."""
KEPT_NAMES = 0.25
"""At most this share of the families keep a real name, and every real name is kept once."""
CHUNK = 131_072
"""Rows of a row group."""

SCHEMA = pa.schema(
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


@dataclass(frozen=True, slots=True)
class Plan:
    """Which text each item has. N items, T texts, F families, G groups (an aisle's cluster).

    `text` int32 [N]; `source` int32 [T]: the text of the source whose size and brand it has; `family` int32 [T];
    `name_of` int32 [F]: the real name that the family's name is made of, `aisle` int32 [F]; `kept`: share of the
    families that keep it. `members` int32 [N]: items by group, the most popular first; `group_start` int64 [G + 1].
    """

    text: npt.NDArray[np.int32]
    source: npt.NDArray[np.int32]
    family: npt.NDArray[np.int32]
    name_of: npt.NDArray[np.int32]
    aisle: npt.NDArray[np.int32]
    kept: float
    members: npt.NDArray[np.int32]
    group_start: Ints


def plan_catalogue(shop: Shop, random: Counted, items: int) -> Plan:
    """Families, their texts, and an item order in which equal texts are scattered."""
    texts = shop.texts
    mean = texts.items.mean() * texts.family.mean()
    families = int(items / mean * 1.1) + 64
    while True:
        number = np.arange(families)
        anchor = random.below(len(texts.items), "anchor", number)
        variants = np.minimum(
            texts.family[random.below(len(texts.family), "variants", number)], texts.looks[texts.aisle[anchor]]
        )
        family = np.repeat(number, variants)
        variant = np.arange(len(family)) - np.repeat(np.cumsum(variants) - variants, variants)
        aisle = texts.aisle[anchor][family]
        start, size = texts.aisle_start[aisle], texts.aisle_start[aisle + 1] - texts.aisle_start[aisle]
        source = texts.by_aisle[start + (random.below(size, "first variant", family) + variant) % size]
        shared = np.minimum(texts.items[source], max(1, items // 64))
        ends = np.cumsum(shared)
        if ends[-1] >= items:
            break
        families *= 2
    count = int(np.searchsorted(ends, items)) + 1
    text = np.repeat(np.arange(count, dtype=np.int32), shared[:count])[:items]
    text = text[np.argsort(random.bits("place", np.arange(items)), kind="stable")]
    families = int(family[count - 1]) + 1
    cluster = random.below(CLUSTERS, "cluster", number[:families])
    group = (texts.aisle[anchor[:families]] * CLUSTERS + cluster)[family[text]].astype(np.uint64)
    rank = (group << np.uint64(40)) | (random.bits("popularity", np.arange(items)) >> np.uint64(24))
    members = np.argsort(rank, kind="stable")
    groups = len(texts.aisle_start) - 1
    return Plan(
        text=text,
        source=source[:count].astype(np.int32),
        family=family[:count].astype(np.int32),
        name_of=texts.name[anchor[:families]].astype(np.int32),
        aisle=texts.aisle[anchor[:families]].astype(np.int32),
        kept=min(KEPT_NAMES, len(texts.names) / families),
        members=members.astype(np.int32),
        group_start=np.searchsorted(group[members], np.arange(groups * CLUSTERS + 1, dtype=np.uint64)),
    )


def write_catalogue(
    shop: Shop, plan: Plan, random: Counted, path: Path, metadata: dict[str, str], advance: Callable[[int], None]
) -> None:
    """One row group a chunk; `advance` is told its rows."""
    with pq.ParquetWriter(path, SCHEMA.with_metadata(metadata), compression="zstd", version="2.6") as writer:
        for table in _chunks(shop, plan, random):
            writer.write_table(table, row_group_size=CHUNK)
            advance(table.num_rows)


def item_ids(items: Ints) -> pa.Array:
    """ "synthetic-0000012"; eight digits and more from ten million on."""
    digits = pc.utf8_lpad(pc.cast(pa.array(items), pa.string()), 7, "0")
    return pc.binary_join_element_wise("synthetic", digits, "-")


def _chunks(shop: Shop, plan: Plan, random: Counted) -> Iterator[pa.Table]:
    texts = shop.texts
    for begin in range(0, len(plan.text), CHUNK):
        item = np.arange(begin, min(begin + CHUNK, len(plan.text)))
        text, place = np.unique(plan.text[item], return_inverse=True)
        source, family = plan.source[text].astype(np.int64), plan.family[text].astype(np.int64)
        aisle = plan.aisle[family].astype(np.int64)
        kept = random.share("kept", family) < plan.kept
        name = texts.made_names(random, plan.name_of[family].astype(np.int64), aisle, kept, family)
        size = texts.sizes.take(pa.array(np.maximum(texts.size[source], 0)))
        size = pc.if_else(pa.array(texts.size[source] >= 0), size, pa.scalar(None, pa.string()))
        title = pc.binary_join_element_wise(name, size, ", ", null_handling="skip")
        here = pa.array(place)
        yield pa.table(
            {
                "item_id": item_ids(item),
                "title": title.take(here),
                "category": texts.categories.take(pa.array(aisle)).take(here),
                "brand": texts.brands.take(pa.array(texts.brand[source])).take(here),
                "description": texts.departments.take(pa.array(aisle)).take(here),
                "price": shop.prices(random, source[place], family[place], item),
                "available": pa.array(random.share("available", item) < AVAILABLE),
                "regions": _regions(shop, random, item),
            },
            schema=SCHEMA,
        )


def _regions(shop: Shop, random: Counted, item: Ints) -> pa.Array:
    """Two neighbouring regions of the source's, or null."""
    names = pa.array(shop.regions, pa.string())
    first = random.below(len(shop.regions), "region", item)
    pair = np.stack([first, (first + 1) % len(shop.regions)], axis=1).ravel()
    everywhere = random.share("restricted", item) >= RESTRICTED
    return pa.ListArray.from_arrays(
        pa.array(2 * np.arange(len(item) + 1), pa.int32()), names.take(pa.array(pair)), mask=pa.array(everywhere)
    )
