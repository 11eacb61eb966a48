"""What a service knows of its users' histories that keeps only the items bought last, and forgets the rest for good.

An item that fell off and is bought again counts from one; training knows better. What is compared with served scores
must be computed from what the service knows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from indexer.contract.features import PURCHASE
from indexer.contract.history import EMPTY, History, latest_first
from indexer.contract.purchases import UserPurchases, session_tag
from indexer.contract.visits import AT_ONCE, Visit

_DAY_MS = 86_400_000.0


@dataclass(slots=True)
class _Item:
    """In how many sessions it was bought, the latest of them, first and last time."""

    times: int
    tag: str
    first_ms: int
    last_ms: int


@dataclass(slots=True)
class _User:
    """Items by id, what was bought last standing last; sessions with a purchase, the latest of them."""

    items: dict[str, _Item] = field(default_factory=dict)
    sessions: int = 0
    tag: str = ""

    def forget(self, most: int) -> None:
        """Leaves the `most` items that were bought last; the service forgets after each call."""
        by_time = sorted(self.items.items(), key=lambda one: one[1].last_ms)
        self.items = dict(by_time[max(0, len(by_time) - most) :])


def remembered(
    pasts: Iterable[UserPurchases], visits: Sequence[Visit], row: Callable[[str], int | None], most: int
) -> list[History]:
    """The history that stands when each visit is answered, in rows of `row`; `pasts` hold `most` items at most."""
    users = {past.user_id: _known(past) for past in pasts}
    out = []
    for visit in visits:
        user = users.setdefault(visit.user_id, _User()) if visit.user_id else _User()
        for session, deeds in visit.before:
            for first in range(0, len(deeds), AT_ONCE):
                for deed in deeds[first : first + AT_ONCE]:
                    if deed.type == PURCHASE:
                        _buy(user, session_tag(session), deed.item_id, deed.at_ms)
                user.forget(most)
        out.append(_history(user, row))
    return out


def _known(past: UserPurchases) -> _User:
    user = _User(sessions=past.anything.times[0] + 1, tag=past.anything.tags[0])
    bought = past.items
    for at in reversed(range(len(past.item_ids))):
        first = min(bought.first_ms[at], bought.at_ms[at]) if bought.times[at] else bought.at_ms[at]
        last = max(bought.last_ms[at], bought.at_ms[at])
        user.items[past.item_ids[at]] = _Item(bought.times[at] + 1, bought.tags[at], first, last)
    return user


def _buy(user: _User, tag: str, item_id: str, at_ms: int) -> None:
    item = user.items.pop(item_id, None) or _Item(0, "", at_ms, at_ms)
    item.times += item.tag != tag
    user.sessions += user.tag != tag
    item.tag = user.tag = tag
    item.first_ms, item.last_ms = min(item.first_ms, at_ms), max(item.last_ms, at_ms)
    user.items[item_id] = item


def _history(user: _User, row: Callable[[str], int | None]) -> History:
    found = [(place, item) for item_id, item in user.items.items() if (place := row(item_id)) is not None]
    if not found:
        return EMPTY
    whole = History(
        np.array([place for place, _ in found], np.int32),
        np.array([item.times for _, item in found], np.int32),
        np.array([item.first_ms for _, item in found]) / _DAY_MS,
        np.array([item.last_ms for _, item in found]) / _DAY_MS,
        user.sessions,
    )
    return latest_first(whole)
