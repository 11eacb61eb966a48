"""About how many rows there are to read, so that progress can say what remains."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from indexer.files import find, kind_of

_SAMPLE_BYTES = 256 * 1024


def expected_rows(path: Path) -> int | None:
    """Rows of the file or folder: exact for Parquet, by the lines of the first 256 KiB for text.

    None when a file is compressed or cannot be read; whoever reads it says why. Raises InputError as `find` does.
    """
    counts = [_rows(file) for file in find(path)]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _rows(file: Path) -> int | None:
    if file.suffix.lower() == ".gz":
        return None
    try:
        if kind_of(file) == "parquet":
            return int(pq.read_metadata(file).num_rows)
        with file.open("rb") as text:
            sample = text.read(_SAMPLE_BYTES)
        return round(sample.count(b"\n") * file.stat().st_size / max(1, len(sample)))
    except (OSError, pa.ArrowInvalid):
        return None
