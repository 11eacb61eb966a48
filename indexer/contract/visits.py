"""Past sessions as a running service is to see them again: what was done, what is asked, what was answered.

Times are Unix milliseconds, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

AT_ONCE = 100
"""Events that are recorded by one call, at most."""


@dataclass(frozen=True, slots=True)
class Deed:
    """Something that a shopper did with an item; `type` as in feed.proto."""

    item_id: str
    type: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Visit:
    """A page is asked for at `at_ms` by a user ("": nobody known), of whose session `known` is known, oldest first.

    `before`: what the user did since the visit before, by session, oldest first; it has to be recorded first.
    """

    user_id: str
    at_ms: int
    known: tuple[Deed, ...]
    before: tuple[tuple[str, tuple[Deed, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Answered:
    """The items of all pages of a visit, best first, with the scores of the first page (float32), and what the first
    page says of itself; `degraded`: how many of the pages were less than they could have been."""

    item_ids: tuple[str, ...]
    scores: npt.NDArray[np.float32]
    rung: str
    reasons: tuple[str, ...]
    pages: int
    degraded: int
