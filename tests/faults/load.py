"""A load of feed requests and events that does not wait for answers, and what came back."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field

import grpc

from fallback.ladder import Reason
from protos import feed_pb2
from tests.feed.conftest import Client, viewed

OK = "OK"
ITEMS = 900
SESSIONS = 40
_EVENT_EVERY = 4
_PATIENCE_S = 30.0
"""A caller that waits for ever, nearly: what is late must show as late, not as a failure of the caller's making."""


@dataclass(frozen=True, slots=True)
class Page:
    """An answer to GetFeed: its status, and the milliseconds that it took in the service."""

    code: str
    rung: int = 0
    degraded: bool = False
    reasons: tuple[str, ...] = ()
    took_ms: float = 0.0
    items: int = 0


@dataclass
class Answers:
    """All that came back; of events the ids that were acknowledged, and the statuses."""

    pages: list[Page] = field(default_factory=list)
    stored: dict[str, str] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)

    @property
    def codes(self) -> set[str]:
        return {page.code for page in self.pages}

    @property
    def reasons(self) -> Counter[str]:
        return Counter(reason for page in self.pages for reason in page.reasons)

    def slower_than(self, milliseconds: float) -> int:
        return sum(page.took_ms > milliseconds for page in self.pages)

    @property
    def p99_ms(self) -> float:
        return sorted(page.took_ms for page in self.pages)[math.ceil(0.99 * len(self.pages)) - 1]

    def __str__(self) -> str:
        degraded = sum(page.degraded for page in self.pages)
        return f"{len(self.pages)} pages, {degraded} degraded {dict(self.reasons)}, p99 {self.p99_ms:.0f} ms"


class Load:
    """`rate` feed requests a second and a quarter as many events, of sessions, users and contexts drawn by `seed`."""

    def __init__(self, feed: Client, rate: float, seed: int = 9) -> None:
        self._feed = feed
        self.rate = rate
        self._rng = random.Random(seed)
        self._numbers = itertools.count()

    async def run(self, seconds: float) -> Answers:
        """Sends for so long, then waits for every answer."""
        answers = Answers()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        async with asyncio.TaskGroup() as calls:
            for number in range(round(seconds * self.rate)):
                if (early := begun + number / self.rate - loop.time()) > 0:
                    await asyncio.sleep(early)
                calls.create_task(self._page(answers))
                if number % _EVENT_EVERY == 0:
                    calls.create_task(self._event(answers))
        return answers

    async def _page(self, answers: Answers) -> None:
        rng = self._rng
        given = {
            "session_id": f"s{rng.randrange(SESSIONS)}" if rng.random() < 0.7 else "",
            "user_id": f"u{rng.randrange(SESSIONS)}" if rng.random() < 0.3 else "",
            "recent_events": [viewed(f"i{rng.randrange(ITEMS)}") for _ in range(rng.randrange(1, 4))],
        }
        try:
            async with asyncio.timeout(_PATIENCE_S):
                page = await self._feed.feed(**given)
        except grpc.aio.AioRpcError as error:
            answers.pages.append(Page(error.code().name))
            return
        said = page.provenance
        took = next(stage.milliseconds for stage in said.stages if stage.stage == "total")
        answers.pages.append(Page(OK, said.rung, said.degraded, tuple(said.reasons), took, len(page.items)))

    async def _event(self, answers: Answers) -> None:
        rng, event_id = self._rng, f"e{next(self._numbers)}"
        session_id = f"s{rng.randrange(SESSIONS)}"
        kind = rng.choice([feed_pb2.EVENT_TYPE_VIEW, feed_pb2.EVENT_TYPE_PURCHASE])
        event = viewed(f"i{rng.randrange(ITEMS)}", event_id=event_id, kind=kind)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._feed.record(session_id, event, user_id=f"u{rng.randrange(SESSIONS)}")
        except grpc.aio.AioRpcError as error:
            answers.events[error.code().name] += 1
        else:
            answers.events[OK] += 1
            answers.stored[event_id] = session_id


def require_honest(answers: Answers) -> None:
    """What holds whatever is broken: every page is OK and full, is degraded exactly when a reason says so, and an event
    is stored or may be sent again."""
    assert answers.codes == {OK}, Counter(page.code for page in answers.pages)
    assert all(page.items == 20 for page in answers.pages)
    assert set(answers.events) <= {OK, "UNAVAILABLE"}, answers.events
    dishonest = [
        page for page in answers.pages if page.degraded != any(Reason(reason).degrades for reason in page.reasons)
    ]
    assert not dishonest, dishonest[:3]
