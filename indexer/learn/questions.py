"""Sessions as questions with answers, for training, choosing and reporting; time is split, no session reaches over.

Setting "session": the user's earlier sessions and the first 1 to 5 items of this one are known, the rest is to be
ranked over the whole catalogue, repeats of earlier purchases included. Setting "next basket": nothing of it is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indexer.contract.features import Context
from indexer.contract.items import Rows
from indexer.learn.interactions import Days, Interactions, tie_break

MAX_KNOWN = 5


@dataclass(frozen=True, slots=True)
class Question:
    """`context`: what is known of the session, newest first. `user`: -1: nobody known. `day`: when it is asked."""

    session: int
    user: int
    day: float
    context: Context
    targets: Rows
    """int32 [t], t >= 1: the other items of the session, in order."""


def questions(
    log: Interactions, start: float, stop: float, *, known: bool, seed: int, limit: int | None = None
) -> list[Question]:
    """Sessions with two items or more that begin in [start, stop) (days), in order of time; at most `limit`, sampled.

    `known`: setting "session"; else "next basket". The sample and the number of known items depend on nothing but
    the seed and the session's place in the log. A session is asked at the moment when it began, so that of the user's
    history only earlier sessions count.
    """
    first, last = np.searchsorted(log.begun, [start, stop], side="left")
    numbers = np.arange(first, last, dtype=np.int64)
    lengths = np.diff(log.starts)[first:last]
    numbers, lengths = numbers[lengths >= 2], lengths[lengths >= 2]
    dice = tie_break(np.zeros(len(numbers), np.int32), numbers, seed)
    if limit is not None and len(numbers) > limit:
        chosen = np.sort(np.argsort(dice, kind="stable")[:limit])
        numbers, lengths, dice = numbers[chosen], lengths[chosen], dice[chosen]
    most = np.minimum(MAX_KNOWN, lengths - 1).astype(np.uint64)
    cuts = 1 + ((dice >> np.uint64(32)) % most).astype(np.int64) if known else np.zeros(len(numbers), np.int64)
    return [_question(log, int(number), int(cut)) for number, cut in zip(numbers, cuts, strict=True)]


def window_starts(begun: Days, shares: tuple[float, ...]) -> tuple[float, ...]:
    """Days at which the last windows begin, each holding its share of the sessions; the last share is the latest.

    (0.2, 0.1): the days at which the last 30 % and the last 10 % of the sessions begin.
    """
    left = np.cumsum(np.asarray(shares)[::-1])[::-1]
    at = (np.maximum(0.0, 1 - left) * (len(begun) - 1)).astype(np.int64)
    return tuple(float(day) for day in begun[at])


def _question(log: Interactions, number: int, cut: int) -> Question:
    span = log.session(number)
    middle = span.start + cut
    known = slice(span.start, middle)
    context = Context(log.rows[known][::-1].copy(), log.types[known][::-1].copy())
    targets = log.rows[middle : span.stop]
    return Question(number, int(log.users[number]), float(log.begun[number]), context, targets)
