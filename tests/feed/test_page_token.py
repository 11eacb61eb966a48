from __future__ import annotations

import base64
import hashlib
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallback.ladder import Rung
from services.errors import InvalidArgument
from services.feed.page_token import PageToken, decode, encode
from services.feed.validate import MAX_TOKEN_BYTES
from tests.properties import examples

KEY = b"a key"
ALPHABET = string.ascii_letters + string.digits + "-_"
ROWS = st.sets(st.integers(0, 2**31 - 1), max_size=60)
TOKENS = st.builds(
    PageToken,
    context_digest=st.binary(min_size=8, max_size=8),
    snapshot_id=st.just("20261130T204419Z-1a2b3c4d"),
    rung=st.sampled_from(Rung),
    rows=ROWS.map(lambda rows: tuple(sorted(rows))),
)
TOKEN = PageToken(b"12345678", "20261130T204419Z-1a2b3c4d", Rung.RANKED, (0, 1, 5, 300, 4_000_000))


def refused(text: str, key: bytes = KEY) -> None:
    with pytest.raises(InvalidArgument) as error:
        decode(text, key)
    assert error.value.field == "page_token"


def forged(head: bytes, rows: bytes, key: bytes = KEY) -> str:
    """What somebody who knows the key could make."""
    body = head + rows
    mac = hashlib.blake2b(body, digest_size=8, key=key).digest()
    return base64.urlsafe_b64encode(body + mac).decode().rstrip("=")


HEAD = b"\x01\x01" + b"12345678" + b"20261130T204419Z-1a2b3c4d"


@examples(200)
@given(TOKENS, st.binary(max_size=64))
def test_a_token_comes_back_as_it_was_given(token: PageToken, key: bytes) -> None:
    text = encode(token, key)
    assert decode(text, key) == token
    assert set(text) <= set(ALPHABET)


def test_rows_may_be_given_in_any_order() -> None:
    token = PageToken(b"12345678", TOKEN.snapshot_id, Rung.POPULAR, (9, 3, 7))
    assert decode(encode(token, KEY), KEY).rows == (3, 7, 9)


@examples(400)
@given(TOKENS, st.data())
def test_any_other_text_is_refused(token: PageToken, data: st.DataObject) -> None:
    text = encode(token, KEY)
    at = data.draw(st.integers(0, len(text)))
    piece = data.draw(st.one_of(st.text(max_size=3), st.text(ALPHABET + "+/=", max_size=3)))
    cut = data.draw(st.integers(0, 3))
    mutated = text[:at] + piece + text[at + cut :]
    if mutated != text:
        refused(mutated)


def test_every_change_of_every_character_is_refused() -> None:
    text = encode(TOKEN, KEY)
    for at, char in enumerate(text):
        for other in ALPHABET + "+/= \n":
            if other != char:
                refused(text[:at] + other + text[at + 1 :])


@pytest.mark.parametrize("rows", [(), (1,), (1, 2), (1, 2, 3)])
def test_a_token_is_accepted_in_one_spelling_only(rows: tuple[int, ...]) -> None:
    text = encode(PageToken(b"12345678", TOKEN.snapshot_id, Rung.RANKED, rows), KEY)
    for spelling in (f"{text}=", f"{text}==", f" {text}", f"{text}\n", f"{text}A"):
        refused(spelling)


@examples(300)
@given(st.text(max_size=200))
def test_random_text_is_refused(text: str) -> None:
    refused(text)


def test_a_token_of_another_key_is_refused() -> None:
    refused(encode(TOKEN, KEY), b"another key")
    refused(encode(TOKEN, b""), KEY)


@examples(300)
@given(st.binary(max_size=60))
def test_a_forged_token_holds_rows_or_is_refused(rows: bytes) -> None:
    try:
        token = decode(forged(HEAD, rows), KEY)
    except InvalidArgument:
        return
    assert all(0 <= row < 2**31 for row in token.rows)
    assert list(token.rows) == sorted(token.rows)


@pytest.mark.parametrize(
    "text",
    [
        forged(b"\x02" + HEAD[1:], b""),
        forged(HEAD[:1] + b"\x00" + HEAD[2:], b""),
        forged(HEAD[:1] + b"\x07" + HEAD[2:], b""),
        forged(HEAD[:-1] + b"\xff", b""),
        forged(HEAD[:-1], b""),
        forged(HEAD, b"\x80"),
        forged(HEAD, b"\xff" * 6000),
        forged(HEAD, b"\xff\xff\xff\xff\x08"),
        forged(HEAD, b"\xff\xff\xff\xff\x07\x01"),
    ],
)
def test_a_forged_token_with_a_field_out_of_range_is_refused(text: str) -> None:
    refused(text)


def test_the_highest_row_is_a_row() -> None:
    assert decode(forged(HEAD, b"\xff\xff\xff\xff\x07"), KEY).rows == (2**31 - 1,)


def test_the_deepest_feed_of_the_largest_catalogue_fits_the_limit_of_the_contract() -> None:
    spread = tuple(range(0, 4_000_000, 2000))
    jumps = (*range(1756), *range(2000, 4_000_000, 16_384))
    for rows in (spread, jumps):
        text = encode(PageToken(b"12345678", TOKEN.snapshot_id, Rung.RANKED, rows), KEY)
        assert len(text) <= MAX_TOKEN_BYTES
