from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer.errors import InputError
from indexer.row_counts import expected_rows


def test_parquet_is_counted_exactly_over_a_folder(tmp_path: Path) -> None:
    for name, rows in (("a", 3), ("b", 5)):
        pq.write_table(pa.table({"item_id": [str(row) for row in range(rows)]}), tmp_path / f"{name}.parquet")
    assert expected_rows(tmp_path) == 8


def test_text_is_extrapolated_from_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item_id,title\n" + "".join(f"{row:07},red kettle\n" for row in range(100_000)))
    assert expected_rows(tmp_path / "items.csv") == pytest.approx(100_000, rel=0.01)


def test_what_cannot_be_told_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "items.csv.gz").write_bytes(gzip.compress(b"item_id\n1\n"))
    (tmp_path / "garbage.parquet").write_bytes(b"garbage")
    assert expected_rows(tmp_path / "items.csv.gz") is None
    assert expected_rows(tmp_path / "garbage.parquet") is None
    (tmp_path / "empty.csv").touch()
    assert expected_rows(tmp_path / "empty.csv") == 0
    with pytest.raises(InputError, match="no such file"):
        expected_rows(tmp_path / "nowhere")
