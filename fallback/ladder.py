"""The rungs of the ladder and the reasons for standing on one, in the order in which quality is given up."""

from __future__ import annotations

from enum import IntEnum, StrEnum


class Rung(IntEnum):
    """How a page was made, best first. The numbers are those of `feedline.v1.Rung`."""

    RANKED = 1
    BLENDED = 2
    RETRIEVED = 3
    STALE = 4
    POPULAR_CATEGORY = 5
    POPULAR = 6


class Reason(StrEnum):
    """Why a page is what it is. The word is what a client reads in `Provenance.reasons`."""

    # What the service lacks.
    NO_SNAPSHOT = "no_snapshot"
    NO_INDEX = "no_index"
    NO_NEIGHBOURS = "no_neighbours"
    NO_RANKER = "no_ranker"
    # What this request met.
    SESSION_UNAVAILABLE = "session_unavailable"
    HISTORY_UNAVAILABLE = "history_unavailable"
    ADMISSION = "admission"
    QUEUE_FULL = "queue_full"
    NO_TIME = "no_time"
    RETRIEVAL_FAILED = "retrieval_failed"
    RERANK_FAILED = "rerank_failed"
    SCORING_FAILED = "scoring_failed"
    # Unforeseen: logged with its trace, counted, and answered all the same.
    INTERNAL_ERROR = "internal_error"
    # Said for the reader's sake: the page is all that the request qualified for.
    PREVIOUS_SNAPSHOT = "previous_snapshot"
    CACHE_UNAVAILABLE = "cache_unavailable"
    NO_CONTEXT = "no_context"
    NO_HISTORY = "no_history"
    UNKNOWN_CATEGORY = "unknown_category"
    UNKNOWN_REGION = "unknown_region"
    PAGE_TOKEN_RESTARTED = "page_token_restarted"  # noqa: S105

    @property
    def degrades(self) -> bool:
        """Whether a page with this reason is less than the request qualified for."""
        return self not in _INFORMATIVE


_INFORMATIVE = frozenset(
    {
        Reason.PREVIOUS_SNAPSHOT,
        Reason.CACHE_UNAVAILABLE,
        Reason.NO_CONTEXT,
        Reason.NO_HISTORY,
        Reason.UNKNOWN_CATEGORY,
        Reason.UNKNOWN_REGION,
        Reason.PAGE_TOKEN_RESTARTED,
    }
)
