"""What surrounds a cached payload: age, lifetimes, and a checksum that knows the key."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

MAGIC = b"FLC"
VERSION = 1
_HEADER = struct.Struct(">3sBQIII8s")  # magic, version, created ms, soft ms, hard ms, payload bytes, checksum
HEADER_BYTES = _HEADER.size
MAX_LIFETIME_MS = 2**32 - 1


class Rejection(StrEnum):
    """Why bytes are not an entry of this key."""

    FOREIGN = "foreign"
    OTHER_VERSION = "other_version"
    TRUNCATED = "truncated"
    TOO_LARGE = "too_large"
    CORRUPT = "corrupt"


@dataclass(frozen=True, slots=True)
class Entry:
    """A payload and its lifetimes. `created_at_ms` is Unix time; `soft_ms` <= `hard_ms`, both since creation."""

    payload: bytes
    created_at_ms: int
    soft_ms: int
    hard_ms: int

    def age_ms(self, now_ms: int) -> int:
        """Milliseconds since creation; 0 if the clock of the machine that wrote it is ahead."""
        return max(0, now_ms - self.created_at_ms)

    def is_fresh(self, now_ms: int) -> bool:
        """Whether the entry may be served as it is."""
        return self.age_ms(now_ms) < self.soft_ms

    def is_usable(self, now_ms: int) -> bool:
        """Whether the entry may still be served when nothing better can be had."""
        return self.age_ms(now_ms) < self.hard_ms

    def remaining_s(self, now_ms: int) -> float:
        """Seconds until the entry is of no use; may be negative."""
        return (self.hard_ms - self.age_ms(now_ms)) / 1000


def seal(key: bytes, entry: Entry) -> bytes:
    """Return the entry as bytes that `unseal` accepts under the same key only."""
    fields = (MAGIC, VERSION, entry.created_at_ms, entry.soft_ms, entry.hard_ms, len(entry.payload))
    checksum = _checksum(key, _HEADER.pack(*fields, b""), entry.payload)
    return _HEADER.pack(*fields, checksum) + entry.payload


def unseal(key: bytes, raw: bytes, max_payload_bytes: int) -> Entry | Rejection:
    """Return the entry, or why there is none. Raises nothing, whatever the bytes."""
    if not raw.startswith(MAGIC):
        return Rejection.FOREIGN
    if raw[len(MAGIC) : len(MAGIC) + 1] != bytes([VERSION]):
        return Rejection.OTHER_VERSION
    if len(raw) < HEADER_BYTES:
        return Rejection.TRUNCATED
    magic, version, created_at_ms, soft_ms, hard_ms, length, checksum = _HEADER.unpack_from(raw)
    if length > max_payload_bytes or len(raw) > HEADER_BYTES + max_payload_bytes:
        return Rejection.TOO_LARGE
    if len(raw) < HEADER_BYTES + length:
        return Rejection.TRUNCATED
    payload = raw[HEADER_BYTES:]
    blank = _HEADER.pack(magic, version, created_at_ms, soft_ms, hard_ms, length, b"")
    if len(payload) != length or checksum != _checksum(key, blank, payload):
        return Rejection.CORRUPT
    return Entry(payload, created_at_ms, soft_ms, hard_ms)


def _checksum(key: bytes, blank_header: bytes, payload: bytes) -> bytes:
    digest = blake2b(struct.pack(">Q", len(key)) + key, digest_size=8)
    digest.update(blank_header)
    digest.update(payload)
    return digest.digest()
