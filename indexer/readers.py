"""Chunks of rows out of files: one reader a kind of file, and `read`, which knows them all."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from indexer.contract import exported
from indexer.errors import InputError
from indexer.files import (
    CHUNK_ROWS,
    CUT,
    PARSED_ROWS,
    Aside,
    BadRow,
    Chunk,
    Column,
    binary,
    columns_of,
    kind_of,
    lines,
    shown,
)
from indexer.values import TOO_LONG_LINE, Bad, arrow_list, arrow_text, list_array, text_array

_Row = TypeVar("_Row")


def read(path: Path, wanted: Sequence[Column], aside: Aside, *, delimiter: str, separator: str) -> Iterator[Chunk]:
    """The rows of one file, in chunks; rows that are none go to `aside`.

    `separator` stands between the parts of a list that is written as one text. Raises InputError or SettingsError
    naming the file.
    """
    kind = kind_of(path)
    if kind == "parquet":
        yield from _read_parquet(path, wanted, aside, separator)
    elif kind == "csv":
        tabs = ".tsv" in (suffix.lower() for suffix in path.suffixes)
        yield from _read_csv(path, wanted, aside, "\t" if tabs else delimiter, separator)
    else:
        yield from _read_jsonl(path, wanted, aside, separator)


def _read_parquet(path: Path, wanted: Sequence[Column], aside: Aside, separator: str) -> Iterator[Chunk]:
    try:
        with pq.ParquetFile(path) as file:
            existing = file.schema_arrow.names
            if not existing and not file.metadata.num_rows:  # what pandas writes for an empty frame
                return
            if exported.MARK in (file.schema_arrow.metadata or {}):
                wanted = [replace(column, name=column.field, required=False) for column in wanted]
            names = columns_of(path, wanted, existing)
            first = 1
            for batch in file.iter_batches(CHUNK_ROWS, columns=list(dict.fromkeys(names.values()))):
                bad: Bad = {}
                columns = {}
                for column in wanted:
                    if column.field in names:
                        array = batch.column(names[column.field])
                        columns[column.field] = (
                            arrow_list(column, array, separator, bad)
                            if column.kind == "list"
                            else arrow_text(column, array, bad)
                        )
                yield _chunk(path, range(first, first + batch.num_rows), columns, bad, aside, batch.num_rows)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: cannot be read as Parquet: {error}") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _read_csv(path: Path, wanted: Sequence[Column], aside: Aside, delimiter: str, separator: str) -> Iterator[Chunk]:
    with binary(path) as file:
        rows = csv.reader(lines(file), delimiter=delimiter)
        try:
            header = next(rows, None)
        except csv.Error as error:
            raise InputError(f"{path}: its first line is no CSV header: {error}") from error
        if header is None:
            return
        names = columns_of(path, wanted, header)
        at = {field: header.index(name) for field, name in names.items()}
        first = 1
        for chunk in _chunks(_csv_rows(rows)):
            good, numbers = [], []
            for number, row in enumerate(chunk, first):
                if isinstance(row, list) and len(row) == len(header):
                    good.append(row)
                    numbers.append(number)
                else:
                    aside.put(BadRow(str(path), number, "", _csv_fault(row, len(header)), shown(row)))
            turned = list(zip(*good, strict=True)) or [()] * len(header)
            values = {field: [value or None for value in turned[place]] for field, place in at.items()}
            yield _from_python(path, numbers, wanted, values, separator, aside, len(chunk))
            first += len(chunk)


def _csv_rows(rows: Iterator[list[str]]) -> Iterator[list[str] | str]:
    """Rows that are not blank; a row that the parser gives up is its complaint."""
    while True:
        try:
            for row in rows:
                if row:
                    yield row
        except csv.Error as error:
            yield str(error)
            continue
        return


def _csv_fault(row: list[str] | str, width: int) -> str:
    if isinstance(row, str):
        return f"is not CSV: {row}"
    return TOO_LONG_LINE if row[0] == CUT else f"has {len(row)} values, the header has {width}"


def _read_jsonl(path: Path, wanted: Sequence[Column], aside: Aside, separator: str) -> Iterator[Chunk]:
    with binary(path) as file:
        first = 1
        names: dict[str, str] | None = None
        for chunk in _chunks(line for line in lines(file) if not line.isspace()):
            good: list[dict[str, object]] = []
            numbers = []
            for number, line in enumerate(chunk, first):
                parsed = _json_object(line)
                if isinstance(parsed, dict):
                    good.append(parsed)
                    numbers.append(number)
                else:
                    aside.put(BadRow(str(path), number, "", parsed, shown(line.rstrip("\r\n"))))
            if names is None and good:
                names = columns_of(path, wanted, list(dict.fromkeys(key for each in good for key in each)))
            named = {column.field: column.name for column in wanted}
            values = {field: [each.get(name) for each in good] for field, name in named.items()}
            yield _from_python(path, numbers, wanted, values, separator, aside, len(chunk))
            first += len(chunk)


def _json_object(line: str) -> dict[str, object] | str:
    if line.startswith(CUT):
        return TOO_LONG_LINE
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError as error:
        return f"is not JSON: {error.msg}"  # without the place: rows are counted by their reason
    except (ValueError, RecursionError):
        return "is not JSON"
    return parsed if isinstance(parsed, dict) else f"is a JSON {type(parsed).__name__}, not an object"


def _chunks(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    while chunk := list(islice(rows, PARSED_ROWS)):
        yield chunk


def _from_python(
    path: Path,
    numbers: Sequence[int],
    wanted: Sequence[Column],
    values: dict[str, list[object]],
    separator: str,
    aside: Aside,
    seen: int,
) -> Chunk:
    bad: Bad = {}
    columns = {
        column.field: (
            list_array(column, values[column.field], separator, bad)
            if column.kind == "list"
            else text_array(column, values[column.field], bad)
        )
        for column in wanted
        if column.field in values
    }
    return _chunk(path, numbers, columns, bad, aside, seen)


def _chunk(
    path: Path, numbers: Sequence[int], columns: dict[str, pa.Array], bad: Bad, aside: Aside, seen: int
) -> Chunk:
    for at, (field, reason, value) in sorted(bad.items()):
        aside.put(BadRow(str(path), numbers[at], field, reason, shown(value)))
    array = pa.array(numbers, pa.int64())
    if bad:
        keep = pa.array([at not in bad for at in range(len(numbers))])
        return Chunk(path, array.filter(keep), {field: each.filter(keep) for field, each in columns.items()}, seen)
    return Chunk(path, array, columns, seen)
