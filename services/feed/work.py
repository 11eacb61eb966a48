"""What the compute thread is asked to do: all that a question needs, or one person's step on a shared answer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from indexer.contract.history import EMPTY, History, latest_first
from indexer.contract.sources import CANDIDATES
from services.domain import PastPurchases
from services.feed.admission import FULL, PERSONAL
from services.feed.answer import Answer
from services.feed.loaded import Loaded
from services.feed.question import Question

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Person:
    """What is personal of a request: the user's history before `day`, in days since 1970. Enters no key."""

    history: History = EMPTY
    day: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One piece of work of the queue.

    question alone        what all share who ask it, with the base ranking: ranked for somebody without a history
    person and an answer  the personal step: the shared answer joined by the person's history, and reranked
    person alone          everything at once for one person, whose history enters the session vector
    """

    question: Question
    person: Person | None = None
    answer: Answer | None = None
    expires_at: float = math.inf
    """On the monotonic clock: what costs more and may be left out is begun only when it fits."""

    @property
    def alone(self) -> bool:
        """Whether nothing of it is shared with anybody."""
        return self.person is not None and self.answer is None

    @property
    def history(self) -> History:
        """Of the person, if there is one."""
        return self.person.history if self.person else EMPTY

    @property
    def day(self) -> float:
        """The person's day; 0 for what all share."""
        return self.person.day if self.person else 0.0

    @property
    def pairs(self) -> int:
        """Pairs of a question and a candidate that are looked at: those that are found, and those that are reranked."""
        ranker = self.question.loaded.ranker
        return (CANDIDATES if self.answer is None else 0) + (ranker.spec.depth if ranker else 1)

    @property
    def weight(self) -> int:
        """In eighths of a full scoring: see `admission`."""
        return FULL if self.answer is None else PERSONAL


def history_of(loaded: Loaded, past: PastPurchases) -> History:
    """The latest purchases of items that the snapshot holds, as many as its manifest says take part."""
    rows = loaded.items.each_row([one.item_id for one in past.items])
    known = [(row, one) for row, one in zip(rows, past.items, strict=True) if row is not None]
    if not known:
        return EMPTY
    whole = History(
        np.array([row for row, _ in known], np.int32),
        np.minimum([one.times for _, one in known], np.iinfo(np.int32).max).astype(np.int32),
        np.array([one.first_ms for _, one in known], np.float64) / _DAY_MS,
        np.array([one.last_ms for _, one in known], np.float64) / _DAY_MS,
        past.sessions,
    )
    return latest_first(whole).latest(loaded.manifest.sources.history)
