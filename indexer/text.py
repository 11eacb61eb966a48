"""What of an item is encoded, and the name under which the vector of a text is kept."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

TEMPLATE = 1
"""Version of CONTENT_TEXT; part of the encoder's fingerprint, so that a new template encodes anew."""

CONTENT_TEXT = r"""
create or replace macro one_line(text) as trim(regexp_replace(text, '\s+', ' ', 'g'));
create or replace macro content_text(title, category, brand, description) as concat_ws('. ',
    nullif(one_line(title), ''), nullif(one_line(category), ''), nullif(one_line(brand), ''),
    nullif(one_line(description), ''));
"""
"""The template, as a DuckDB macro: title, category, brand and description, each on one line, joined by ". "; what an
item lacks is left out. An item without any of them has the empty text."""

Keys = npt.NDArray[np.bytes_]


def content_hash(text: str) -> bytes:
    """16 bytes of blake2b of the text's UTF-8."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def content_keys(texts: Iterable[str], count: int) -> Keys:
    """The hashes of `count` texts, bytes S16 [count]."""
    return np.fromiter(map(content_hash, texts), dtype="S16", count=count)
