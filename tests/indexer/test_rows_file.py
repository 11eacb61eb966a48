from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexer.rows_file import rows_file

FULL = Path("/dev/full")
"""A device that is always full (Linux)."""


def test_blocks_are_read_back_as_one_array(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    with rows_file(tmp_path / "rows.npy", np.float16, (4, 3)) as append:
        append(rows[:1])
        append(rows[1:][:, ::1])
    read = np.load(tmp_path / "rows.npy", mmap_mode="r", allow_pickle=False)
    assert read.dtype == np.dtype(np.float16)
    assert read.tolist() == rows.tolist()


@pytest.mark.parametrize(
    ("shape", "why"),
    [((1, 3), r"rows\.npy: 1 rows, expected 2"), ((2, 2), r"rows\.npy: rows of \(2,\), expected \(3,\)")],
)
def test_rows_that_are_missing_or_of_another_width_are_said(tmp_path: Path, shape: tuple[int, int], why: str) -> None:
    with pytest.raises(ValueError, match=why), rows_file(tmp_path / "rows.npy", int, (2, 3)) as append:
        append(np.zeros(shape, int))


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error() -> None:
    with pytest.raises(OSError, match="No space left"), rows_file(FULL, np.float16, (100_000, 8)) as append:
        append(np.zeros((100_000, 8)))
