"""The content key: a digest of what an answer depends on."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import TypeAlias

Field: TypeAlias = "bool | int | float | str | bytes | Sequence[Field] | None"

FORMAT = 1
DIGEST_BYTES = 20


def content_key(prefix: str, fields: Mapping[str, Field]) -> bytes:
    """Return `<prefix>:<format>:<20-byte BLAKE2b digest>` of the canonical encoding of `fields`.

    Two mappings have the same key exactly when they hold the same names with values of the same type and content.
    The order of names does not matter; the order within a sequence does; a list and a tuple are the same sequence.
    `None`, the empty string, zero, `False` and an absent name are five different things. Text is not normalised.
    0.0 and -0.0 are one number.

    Raises `TypeError` for a value of another type and `ValueError` for a float that is not finite; both name the field.
    """
    digest = blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(fields):
        digest.update(_framed(b"n", _utf8(name)))
        digest.update(_encode(name, fields[name]))
    return f"{prefix}:{FORMAT}:".encode() + digest.digest()


def _encode(name: str, value: Field) -> bytes:
    match value:
        case None:
            return _framed(b"0", b"")
        case bool():  # before int, of which it is a subclass
            return _framed(b"?", b"\x01" if value else b"\x00")
        case int():
            return _framed(b"i", b"%d" % value)
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{name}: expected a finite number, got {value}")
            return _framed(b"f", struct.pack(">d", value + 0.0))
        case str():
            return _framed(b"s", _utf8(value))
        case bytes():
            return _framed(b"b", value)
        case list() | tuple():
            return _framed(b"[", b"".join(_encode(f"{name}[{i}]", item) for i, item in enumerate(value)))
        case _:
            raise TypeError(
                f"{name}: expected None, bool, int, float, str, bytes or a list or tuple of these, "
                f"got {type(value).__name__}"
            )


def _framed(tag: bytes, content: bytes) -> bytes:
    return tag + struct.pack(">Q", len(content)) + content


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
