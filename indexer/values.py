"""Values of the user's files as text: one rule for CSV, JSON Lines and Parquet."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from indexer.errors import InputError
from indexer.files import CUT, LINE_LIMIT, Column

Bad = dict[int, tuple[str, str, object]]
"""By position in the chunk: field, reason, value."""
NOT_TEXT = "is not UTF-8"
TOO_LONG_LINE = f"line is longer than {LINE_LIMIT} bytes"
_WHOLE = 2.0**53
"""Floats below this that are whole stand for integers: pandas makes floats of integer columns that have gaps."""


def text_array(column: Column, values: Sequence[object], bad: Bad) -> pa.Array:
    """Python values as string [m]; what is no text, number or truth value becomes null and is put into `bad`."""
    if not all(value is None or type(value) is str for value in values):
        values = [_text(column, at, value, bad) for at, value in enumerate(values)]
    return _encoded(column, values, bad)


def list_array(column: Column, values: Sequence[object], separator: str, bad: Bad) -> pa.Array:
    """Python lists, or texts joined by `separator`, as list<string> [m]."""
    out: list[list[str] | None] = []
    for at, value in enumerate(values):
        if isinstance(value, list):
            texts = [_text(column, at, part, bad) for part in value]
            out.append([text for text in texts if text is not None])
        else:
            text = _text(column, at, value, bad)
            out.append(None if text is None else text.split(separator))
        if any(not _is_utf8(part) for part in out[-1] or ()):
            bad.setdefault(at, (column.field, NOT_TEXT, value))
            out[-1] = None
    return pa.array(out, pa.list_(pa.string()))


def arrow_text(column: Column, array: pa.Array, bad: Bad) -> pa.Array:
    """A Parquet column as string [m]. Raises InputError when its type has no text."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        return arrow_text(column, array.dictionary_decode(), bad)
    if pa.types.is_floating(kind):
        return _floats(column, array.cast(pa.float64()))
    if pa.types.is_timestamp(kind):  # an instant: its UTC date and time, to the microsecond
        return array.cast(pa.timestamp("us", kind.tz), safe=False).cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind) or _is_bytes(kind):
        return _valid_utf8(column, array, bad)
    if pa.types.is_null(kind) or pa.types.is_boolean(kind) or _is_plain(kind):
        return array.cast(pa.string())
    raise InputError(f"column {column.name!r} for {column.field} is of type {kind}; expected text, a number or a time")


def arrow_list(column: Column, array: pa.Array, separator: str, bad: Bad) -> pa.Array:
    """A Parquet column of lists, or of texts joined by `separator`, as list<string> [m]."""
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return list_array(column, array.to_pylist(), separator, bad)
    return pc.split_pattern(arrow_text(column, array, bad), separator)


def _text(column: Column, at: int, value: object, bad: Bad) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if math.isnan(value) and column.kind != "number":
            return None
        return str(int(value)) if value.is_integer() and abs(value) < _WHOLE else repr(value)
    bad.setdefault(at, (column.field, f"is a {type(value).__name__}, not a text or a number", value))
    return None


def _encoded(column: Column, values: Sequence[object], bad: Bad) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        kept = list(values)
    for at, value in enumerate(kept):
        if not _is_utf8(value):
            bad.setdefault(at, ("", TOO_LONG_LINE, "") if value == CUT else (column.field, NOT_TEXT, value))
            kept[at] = None
    return pa.array(kept, pa.string())


def _is_utf8(value: object) -> bool:
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return True


def _valid_utf8(column: Column, array: pa.Array, bad: Bad) -> pa.Array:
    """Arrow reads a Parquet file's strings unchecked."""
    try:
        text = array.cast(pa.string())
        text.validate(full=True)
    except pa.ArrowInvalid:
        raw = array.cast(pa.binary()).to_pylist()
        return _encoded(
            column, [None if each is None else each.decode("utf-8", "surrogateescape") for each in raw], bad
        )
    return text


def _floats(column: Column, array: pa.Array) -> pa.Array:
    whole = pc.and_(pc.equal(pc.floor(array), array), pc.less(pc.abs(array), _WHOLE))
    text = pc.if_else(whole, pc.if_else(whole, array, None).cast(pa.int64()).cast(pa.string()), array.cast(pa.string()))
    return text if column.kind == "number" else pc.if_else(pc.is_nan(array), None, text)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_date(kind))
