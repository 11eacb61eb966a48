"""items.parquet and id_index.npy out of the workspace, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.contract.features import Floats
from indexer.contract.items import SCHEMA, build_id_index
from indexer.workspace import Workspace

_ITEMS = """
select item_id, title, category, brand, price, available, regions, text_no as variant from items order by row
"""


def write_items(work: Workspace, popularity: Floats, path: Path) -> None:
    """Writes the table `items` in row order; `popularity` float32 [n] by row."""
    first = 0
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for batch in work.batches(_ITEMS):
            column = pa.array(popularity[first : first + batch.num_rows])
            table = pa.Table.from_batches([batch]).append_column("popularity", column)
            writer.write_table(table.select(SCHEMA.names).cast(SCHEMA))
            first += batch.num_rows


def write_id_index(work: Workspace, count: int, path: Path) -> None:
    """Writes the table of `IdIndex` for the `count` items."""
    np.save(path, build_id_index(_ids(work), count), allow_pickle=False)


def _ids(work: Workspace) -> Iterator[str]:
    for batch in work.batches("select item_id from items order by row"):
        yield from batch["item_id"].to_pylist()
