"""A scratch database on disk for one build: what does not fit into memory is sorted and joined here."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.errors import BuildError
from indexer.files import Aside, Chunk, Column, find
from indexer.progress import Advance
from indexer.readers import read

_MACROS = r"""
create macro named(text) as nullif(trim(text), '');
create macro unfit(text) as strlen(text) > 256 or regexp_matches(text, '\p{Cc}');
"""
"""`named`: the trimmed text, null when nothing is left. `unfit`: no request could spell it (limits of feed.proto)."""
_PREFIX = ".staging-"
BATCH_ROWS = 65_536


class Workspace:
    """`sql` is a DuckDB connection bounded in memory, UTC; `folder` holds its files until the build ends."""

    def __init__(self, folder: Path, sql: duckdb.DuckDBPyConnection) -> None:
        self.folder = folder
        self.sql = sql

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """The rows of a query, at most 65,536 a batch."""
        with self.sql.cursor() as reader:  # a connection does one thing at a time
            yield from reader.sql(query).to_arrow_reader(BATCH_ROWS)

    def count(self, query: str) -> int:
        """The one number that a query gives; 0 for null."""
        ((number,),) = self.sql.execute(query).fetchall()
        return int(number or 0)


@contextmanager
def workspace(root: Path, *, threads: int, memory_limit_mb: int) -> Iterator[Workspace]:
    """A workspace below `root`, removed at the end; what killed builds left there is removed first.

    To be entered only by the holder of the lock of `root`. Raises BuildError when the memory limit is too low.
    """
    for left_over in root.glob(f"{_PREFIX}*"):
        shutil.rmtree(left_over)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
    try:
        with duckdb.connect(folder / "scratch.duckdb") as sql:
            sql.execute(f"set threads = {threads}")
            sql.execute(f"set memory_limit = '{memory_limit_mb} MiB'")
            sql.execute("set TimeZone = 'UTC'")
            sql.execute("set enable_progress_bar = false")
            sql.execute(_MACROS)
            yield Workspace(folder, sql)
    except duckdb.OutOfMemoryException as error:
        raise BuildError(f"index.memory_limit_mb = {memory_limit_mb} is too little: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def stage_files(
    source: Path,
    columns: Sequence[Column],
    target: Path,
    aside: Aside,
    advance: Advance,
    *,
    delimiter: str,
    separator: str,
) -> list[Path]:
    """Copies the rows of all files at `source` into one Parquet file of text: file (number), line, and the fields.

    Fields that no file has are null. Returns the files by their number. Raises InputError or SettingsError.
    """
    files = find(source)
    schema = pa.schema(
        [pa.field("file", pa.int32()), pa.field("line", pa.int64())]
        + [pa.field(each.field, pa.list_(pa.string()) if each.kind == "list" else pa.string()) for each in columns]
    )
    with pq.ParquetWriter(target, schema, compression="lz4", use_dictionary=False) as writer:
        waiting: list[pa.RecordBatch] = []
        for number, path in enumerate(files):
            for chunk in read(path, columns, aside, delimiter=delimiter, separator=separator):
                waiting.append(_batch(number, chunk, schema))
                if sum(map(len, waiting)) >= BATCH_ROWS:
                    writer.write_table(pa.Table.from_batches(waiting))
                    waiting = []
                advance(chunk.seen)
        writer.write_table(pa.Table.from_batches(waiting, schema))
    return files


def _batch(number: int, chunk: Chunk, schema: pa.Schema) -> pa.RecordBatch:
    rows = len(chunk.numbers)
    arrays = [pa.repeat(pa.scalar(number, pa.int32()), rows), chunk.numbers]
    for field in list(schema)[2:]:
        array = chunk.columns.get(field.name)
        arrays.append(pa.nulls(rows, field.type) if array is None else array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
