"""The page token: what a client gives back to see the next page. Opaque to it, checked by us."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fallback.ladder import Rung
from services.errors import InvalidArgument

_VERSION = 1
_HEAD = struct.Struct("<BB8s25s")
_MAC = 8
_ROW_BITS = 31


@dataclass(frozen=True, slots=True)
class PageToken:
    """What was shown so far: `rows` (sorted) of `snapshot_id`, asked with the context of `context_digest` (8 bytes)."""

    context_digest: bytes
    snapshot_id: str
    rung: Rung
    rows: tuple[int, ...]


def encode(token: PageToken, key: bytes) -> str:
    """The token as URL-safe text, with a keyed checksum. About 2 bytes a row."""
    head = _HEAD.pack(_VERSION, token.rung, token.context_digest, token.snapshot_id.encode("ascii"))
    body = head + _deltas(sorted(token.rows))
    return _text(body + _mac(body, key))


def decode(text: str, key: bytes) -> PageToken:
    """The token that `encode` wrote with this key. Raises InvalidArgument naming page_token on anything else."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise _bad() from None
    body, mac = data[:-_MAC], data[-_MAC:]
    if text != _text(data) or len(body) < _HEAD.size or not hmac.compare_digest(mac, _mac(body, key)):
        raise _bad()
    version, rung, digest, snapshot = _HEAD.unpack_from(body)
    if version != _VERSION:
        raise _bad()
    try:
        return PageToken(digest, snapshot.decode("ascii"), Rung(rung), tuple(_rows(body[_HEAD.size :])))
    except ValueError:
        raise _bad() from None


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def _bad() -> InvalidArgument:
    return InvalidArgument("page_token", "is not a token that this service gave: send none for the first page")


def _mac(body: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_MAC, key=key).digest()


def _deltas(rows: Iterable[int]) -> bytes:
    """Differences of ascending rows as base-128 integers, lowest group first."""
    out = bytearray()
    last = 0
    for row in rows:
        left = row - last
        last = row
        while left >= 0x80:
            out.append(left & 0x7F | 0x80)
            left >>= 7
        out.append(left)
    return bytes(out)


def _rows(data: bytes) -> Iterator[int]:
    """The rows that `_deltas` wrote. Raises ValueError on a row above int32 and on an unfinished one."""
    row = shift = value = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            row += value
            yield row
            shift = value = 0
        if shift > _ROW_BITS or row >> _ROW_BITS:
            raise ValueError("a row above int32")
    if shift:
        raise ValueError("an unfinished row")
