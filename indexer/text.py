"""What of an item is encoded, and the name under which its vector is kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TEMPLATE = 1
"""Version of `content_text`; part of the encoder's fingerprint, so that a new template encodes anew."""

CONTENT_TEXT = r"""
create or replace macro one_line(text) as trim(regexp_replace(text, '\s+', ' ', 'g'));
create or replace macro content_text(title, category, brand, description) as concat_ws('. ',
    nullif(one_line(title), ''), nullif(one_line(category), ''), nullif(one_line(brand), ''),
    nullif(one_line(description), ''));
create or replace macro content_key(text, pictures) as unhex(left(
    case when pictures is null then sha256(text) else sha256('\xFF'::blob || pictures || encode(text)) end, 32));
"""
"""DuckDB macros. `content_text`: title, category, brand and description, each on one line, joined by ". "; what an item
lacks is left out, an item without any of them has the empty text. `content_key`: 16 bytes of the SHA-256 of the text,
and of the 32 bytes that stand for the pictures where there are some; no text begins with the byte FF."""

Keys = npt.NDArray[np.bytes_]
"""Content keys, S16 [.]."""
