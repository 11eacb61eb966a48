"""What users bought, as `feedline events load` hands it from the events files to the service's store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

TAG_LENGTH = 8
"""Hex digits; two sessions of one user have the same tag once in 4 billion."""


@dataclass(frozen=True, slots=True)
class Bought:
    """In which sessions something was bought: the latest one apart, the others counted.

    `tags`: session_tag of the latest session; `at_ms`: its last purchase; `times`: sessions before it; `first_ms` and
    `last_ms`: first and last of those, 0 where there is none. Moments are Unix milliseconds. All columns are of one
    length. A session's purchases of one thing happen at the last of their moments.
    """

    tags: Sequence[str]
    at_ms: Sequence[int]
    times: Sequence[int]
    first_ms: Sequence[int]
    last_ms: Sequence[int]


@dataclass(frozen=True, slots=True)
class UserPurchases:
    """The items that a user bought, latest first, and of anything at all (one entry) the same."""

    tenant: str
    user_id: str
    anything: Bought
    item_ids: Sequence[str]
    items: Bought


def session_tag(session_id: str) -> str:
    """Tells a user's sessions apart in few bytes."""
    return sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:TAG_LENGTH]
