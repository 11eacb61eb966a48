"""popular.parquet: the lists that are served when nothing better can be, best item first.

One list per region, per category, per (region, category), and one overall. A list of a category holds its items
even if none was ever sold (score 0), so that no known category is without a list.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        pa.field("region", pa.string()),
        pa.field("category", pa.string()),
        pa.field("row", pa.int32(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
    ]
)
"""Null region: all regions. Null category: all categories. Entries of a list stand together, best first."""


def read(path: Path) -> pa.Table:
    """The table of all lists."""
    return pq.read_table(path, schema=SCHEMA)
