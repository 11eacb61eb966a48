"""Random shopping logs, and what a history of them should say, counted plainly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from services.domain import EventType, PastPurchase, PastPurchases, RecordedEvents, ShopEvent
from tests.feed.state import NOW_MS, batch

DAY_MS = 86_400_000


@dataclass(frozen=True)
class Visit:
    """A session: one batch of events after the other."""

    session: str
    user: str
    calls: tuple[RecordedEvents, ...]

    @property
    def bought(self) -> dict[str, int]:
        """When each item was bought last."""
        events = [event for call in self.calls for event in call.events if event.type is EventType.PURCHASE]
        return {event.item_id: event.occurred_at_ms for event in sorted(events, key=lambda event: event.occurred_at_ms)}


def visits(seed: int, *, users: int = 3, sessions: int = 30, items: int = 12) -> list[Visit]:
    """Sessions one after the other, a day or so apart; what is viewed is viewed before it is bought."""
    random = Random(seed)
    made = []
    at = NOW_MS - 400 * DAY_MS
    for number in range(sessions):
        at += random.randrange(DAY_MS // 100, 2 * DAY_MS)
        user, session = f"user-{random.randrange(users)}", f"session-{number}"
        calls = []
        for call in range(random.randint(1, 3)):
            events = []
            kind = EventType.PURCHASE if call else random.choice((EventType.VIEW, EventType.PURCHASE))
            for place in range(random.randint(1, 4)):
                at += random.randrange(1, 60_000)
                events.append(ShopEvent(f"{call}-{place}", f"item-{random.randrange(items)}", kind, at))
            calls.append(batch(*events, session=session, user=user))
        made.append(Visit(session, user, tuple(calls)))
    return made


def counted(before: Sequence[Visit], user: str) -> PastPurchases:
    """The history of these sessions."""
    bought = [visit.bought for visit in before if visit.user == user and visit.bought]
    moments: dict[str, list[int]] = {}
    for each in bought:
        for item, at in each.items():
            moments.setdefault(item, []).append(at)
    items = [PastPurchase(item, len(ats), min(ats), max(ats)) for item, ats in moments.items()]
    return PastPurchases(tuple(sorted(items, key=lambda item: -item.last_ms)), len(bought))
