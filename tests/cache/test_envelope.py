from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from cache.envelope import HEADER_BYTES, MAX_LIFETIME_MS, Entry, Rejection, seal, unseal

KEY = b"feedline:1:key"
ENTRY = Entry(b"the answer", created_at_ms=1_800_000_000_000, soft_ms=60_000, hard_ms=600_000)
LIMIT = 1024

lifetimes = st.integers(0, MAX_LIFETIME_MS)
entries = st.builds(Entry, st.binary(max_size=LIMIT), st.integers(0, 2**64 - 1), lifetimes, lifetimes)


@given(st.binary(), entries)
def test_what_was_sealed_is_unsealed(key: bytes, entry: Entry) -> None:
    assert unseal(key, seal(key, entry), LIMIT) == entry


@given(st.binary(max_size=200))
def test_foreign_bytes_are_rejected(raw: bytes) -> None:
    assert isinstance(unseal(KEY, raw, LIMIT), Rejection)


def test_every_flipped_bit_is_noticed() -> None:
    sealed = seal(KEY, ENTRY)

    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        assert isinstance(unseal(KEY, bytes(flipped), LIMIT), Rejection)


def test_every_cut_is_noticed() -> None:
    sealed = seal(KEY, ENTRY)

    assert all(isinstance(unseal(KEY, sealed[:length], LIMIT), Rejection) for length in range(len(sealed)))
    assert unseal(KEY, sealed[:-1], LIMIT) is Rejection.TRUNCATED
    assert unseal(KEY, sealed + b"x", LIMIT) is Rejection.CORRUPT


def test_random_damage_is_noticed() -> None:
    rng = random.Random(7)
    sealed = seal(KEY, ENTRY)

    for _ in range(2000):
        start = rng.randrange(len(sealed))
        damaged = sealed[:start] + rng.randbytes(rng.randrange(1, 40)) + sealed[start + rng.randrange(40) :]
        assert damaged == sealed or isinstance(unseal(KEY, damaged, LIMIT), Rejection)


def test_an_entry_of_another_key_is_not_accepted() -> None:
    assert unseal(b"another key", seal(KEY, ENTRY), LIMIT) is Rejection.CORRUPT


def test_another_format_is_told_apart_from_foreign_bytes() -> None:
    sealed = seal(KEY, ENTRY)

    assert unseal(KEY, sealed[:3] + b"\x02" + sealed[4:], LIMIT) is Rejection.OTHER_VERSION
    assert unseal(KEY, b"\x80\x04pickle", LIMIT) is Rejection.FOREIGN


def test_a_payload_above_the_limit_is_rejected_whole_or_cut() -> None:
    sealed = seal(KEY, Entry(b"x" * (LIMIT + 1), 0, 1, 1))

    assert unseal(KEY, sealed, LIMIT) is Rejection.TOO_LARGE
    assert unseal(KEY, sealed[: HEADER_BYTES + LIMIT], LIMIT) is Rejection.TOO_LARGE


def test_lifetimes_end_on_the_millisecond() -> None:
    created = ENTRY.created_at_ms

    assert ENTRY.is_fresh(created + 59_999)
    assert not ENTRY.is_fresh(created + 60_000)
    assert ENTRY.is_usable(created + 599_999)
    assert not ENTRY.is_usable(created + 600_000)
    assert ENTRY.remaining_s(created + 590_000) == 10.0


def test_a_clock_that_is_behind_gives_no_negative_age() -> None:
    assert ENTRY.age_ms(ENTRY.created_at_ms - 5000) == 0
