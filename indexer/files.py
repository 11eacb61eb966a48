"""The user's files: Parquet, CSV, TSV or JSON Lines, one file or a folder of them, read in chunks.

Every value becomes text (ids stay as given: "007" is not 7, and the JSON or Parquet number 7 is "7"); a list
column becomes lists of text. What cannot be read as a row is set aside with its row number and never stops the
reading; what cannot be read as a file does.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, cast

import pyarrow as pa

from indexer.errors import InputError, SettingsError

CHUNK_ROWS = 65_536
PARSED_ROWS = 4096
"""Rows that stand as Python objects at once: with more of them the garbage collector takes half of the time."""
LINE_LIMIT = 1 << 20
"""Bytes; a longer line is a bad row."""
CUT = "\udc00"
"""Stands for a line above LINE_LIMIT; no file can hold it."""
_KINDS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
_KEPT_BAD_ROWS = 100_000
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Column:
    """One canonical field and the column that holds it; `setting` is what the user would change."""

    field: str
    name: str
    setting: str
    required: bool
    kind: Literal["text", "number", "list"] = "text"


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that is left out: 1-based data row, field ("" for the whole row), reason, the beginning of the value."""

    file: str
    row: int
    field: str
    reason: str
    value: str


@dataclass(slots=True)
class Aside:
    """What was set aside while reading: all of it counted by (field, reason), the first 100,000 kept."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    rows: list[BadRow] = field(default_factory=list)

    def put(self, row: BadRow) -> None:
        """Counts a bad row, and keeps it while there is room."""
        self.counts[row.field, row.reason] += 1
        if len(self.rows) < _KEPT_BAD_ROWS:
            self.rows.append(row)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one file. `numbers` int64 [m]: their 1-based data rows; `columns`: string or list<string> [m] by field.

    `seen` counts the file's rows that were read for this chunk, bad ones included.
    """

    file: Path
    numbers: pa.Array
    columns: dict[str, pa.Array]
    seen: int


def shown(value: object) -> str:
    """The beginning of a value, on one line, for a person to read."""
    text = value if isinstance(value, str) else repr(value)
    printable = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text[:_SHOWN])
    return printable if len(text) <= _SHOWN else printable + "…"


def kind_of(path: Path) -> str:
    """ "parquet", "csv" or "jsonl" by the file's name. Raises InputError naming what is supported."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    kind = _KINDS.get(suffixes[-1] if suffixes else "")
    if kind is None or (kind == "parquet" and path.suffix.lower() == ".gz"):
        raise InputError(f"{path}: expected .parquet, .csv, .tsv, .jsonl or .ndjson, the last four also with .gz")
    return kind


def find(path: Path) -> list[Path]:
    """The files at `path`: itself, or all in the folder and below it, sorted by name, hidden ones left out.

    Kinds may be mixed: the service's own export is Parquet, whatever the shop writes. Raises InputError when nothing is
    there, or when a file is of no known kind. A folder may be empty.
    """
    if path.is_file():
        kind_of(path)
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: no such file or folder")
    found = sorted(each for each in path.rglob("*") if each.is_file() and not _hidden(each.relative_to(path)))
    for each in found:
        kind_of(each)
    return found


def columns_of(path: Path, wanted: Sequence[Column], existing: Sequence[str]) -> dict[str, str]:
    """Which column of the file holds each field; optional ones that the file lacks are left out.

    Raises SettingsError naming the file, the column, the setting to change and the columns that exist.
    """
    twice = sorted(name for name, times in Counter(existing).items() if times > 1)
    for column in wanted:
        if column.name in twice:
            raise SettingsError(f"{path}: column {column.name!r} for {column.field} stands there twice")
        if column.required and column.name not in existing:
            names = ", ".join(map(repr, existing)) or "none"
            raise SettingsError(
                f"{path}: no column {column.name!r} for {column.field}; set {column.setting} to one of: {names}"
            )
    return {column.field: column.name for column in wanted if column.name in existing}


@contextmanager
def binary(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, decompressed. Raises InputError naming the file when they cannot be read to the end."""
    try:
        with path.open("rb") as raw:
            yield cast("BinaryIO", gzip.GzipFile(fileobj=raw)) if path.suffix.lower() == ".gz" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def lines(file: BinaryIO) -> Iterator[str]:
    """Lines with their ends. Bytes that are not UTF-8 become lone surrogates, which the readers set aside."""
    first = True
    while line := file.readline(LINE_LIMIT):
        text = line.decode("utf-8", "surrogateescape")
        if len(line) == LINE_LIMIT and not line.endswith(b"\n"):
            while (rest := file.readline(LINE_LIMIT)) and not rest.endswith(b"\n"):
                pass
            text = CUT + "\n"
        yield text.removeprefix("\ufeff") if first else text
        first = False


def _hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)
