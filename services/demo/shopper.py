"""A scripted shopper, over real gRPC: cold start, clicks, a second shopper, a lost Redis, a drained service."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf.timestamp_pb2 import Timestamp

from cache.embedded import EmbeddedValkey
from cache.redis_link import open_client
from protos import feed_pb2
from services.client import FeedClient
from services.demo.children import Service
from services.demo.story import Page, Story, ids, total_ms

PAGE_SIZE = 20
_CLICKS = 3
_IN_FLIGHT = 24
_HITS = (feed_pb2.CACHE_OUTCOME_LOCAL, feed_pb2.CACHE_OUTCOME_SHARED)
_BACK_WITHIN_S = 10.0
_OUTAGES = frozenset({"session_unavailable", "history_unavailable", "cache_unavailable"})
_ATTEMPTS = 20


@dataclass
class Shopper:
    """A person with a session; `events` are what was recorded for it, oldest first."""

    name: str
    session_id: str = field(default_factory=lambda: f"demo-{uuid.uuid4().hex[:12]}")
    events: list[feed_pb2.Event] = field(default_factory=list)

    def asks(self, recent_events: Sequence[feed_pb2.Event] = ()) -> feed_pb2.GetFeedRequest:
        """For the first page of the shopper's feed."""
        return feed_pb2.GetFeedRequest(
            session_id=self.session_id,
            user_id=self.name,
            surface="demo",
            page_size=PAGE_SIZE,
            recent_events=recent_events,
        )


async def cold_start(story: Story, client: FeedClient, ann: Shopper) -> Page:
    """A shopper of whom nothing is known."""
    with story.step("Cold start", "Nothing is known of Ann yet. Popularity is the right answer, not an error.") as step:
        page = await client.get_feed(ann.asks())
        story.show(step, page)
        source = page.provenance
        story.claim(step, f"{PAGE_SIZE} items, by popularity", _full(page) and source.rung == feed_pb2.RUNG_POPULAR)
        story.claim(step, "not degraded: it is all that the request qualified for", not source.degraded)
    return page


async def clicks(story: Story, client: FeedClient, ann: Shopper, popular: Page) -> Page:
    """Three clicks on three kinds of things, each recorded, each in the very next feed."""
    page = popular
    for number in range(1, _CLICKS + 1):
        clicked, seen_on = _next_click(story, (page, popular), ann)
        title = story.titles.of(clicked)[0] if story.titles else clicked
        why = "A recorded event is in the very next feed: no batch, no minute of delay."
        with story.step(f'Click {number}: "{title}"', why) as step:
            event = feed_pb2.Event(
                event_id=uuid.uuid4().hex, item_id=clicked, type=feed_pb2.EVENT_TYPE_CLICK, occurred_at=_now(),
                response_id=seen_on.provenance.response_id,
            )  # fmt: skip
            stored = await client.record_events(
                feed_pb2.RecordEventsRequest(session_id=ann.session_id, user_id=ann.name, events=[event])
            )
            ann.events.append(event)
            before, page = ids(page), await client.get_feed(ann.asks())
            story.show(step, page, before=before)
            source = page.provenance
            changed = len(set(ids(page)) - set(before))
            step.facts = {"clicked": clicked, "new_items": changed}
            story.claim(step, "the event is stored", stored.stored == 1)
            story.claim(step, f"{number} of {number} clicks are in the question", source.context_events == number)
            story.claim(step, "ranked for this session, not degraded", _ranked(page))
            story.claim(step, f"the feed changed: {changed} of {len(page.items)} items are new", ids(page) != before)
    return page


async def same_question(story: Story, client: FeedClient, ann: Shopper, page: Page) -> None:
    """Another person, another session, the same recent events."""
    why = "The cache is keyed by what was asked, never by who asks: Bob's page costs no scoring."
    with story.step("Another shopper, the same question", why) as step:
        bob = Shopper("Bob")
        given = [feed_pb2.Event(item_id=event.item_id, type=event.type) for event in ann.events]
        hit = await client.get_feed(bob.asks(recent_events=given))
        story.show(step, hit, top=3)
        step.facts = {"computed_ms": total_ms(page), "hit_ms": total_ms(hit)}
        story.claim(step, "answered from the cache", hit.provenance.cache in _HITS)
        story.claim(step, "the same items in the same order", ids(hit) == ids(page))
        story.say(f"    {total_ms(page):.1f} ms when it was computed for Ann, {total_ms(hit):.1f} ms for Bob")


async def redis_killed(story: Story, client: FeedClient, ann: Shopper, state: Path) -> None:
    """kill -9 of the embedded Valkey: still a feed; a moment later the server is back, with its data."""
    why = "Sessions and shared cache are gone at once. A page still comes, says what it lacks, and is never an error."
    with story.step("Redis killed", why) as step:
        embedded = EmbeddedValkey(state)
        pid = await server_pid(embedded.url)
        story.say(f"    kill -9 {pid}")
        os.kill(pid, signal.SIGKILL)
        # The service restarts its server within a fraction of a second: the first pages after the kill tell.
        begun = time.monotonic()
        page = await client.get_feed(ann.asks(recent_events=ann.events))
        while "session_unavailable" not in page.provenance.reasons and time.monotonic() - begun < 1:
            page = await client.get_feed(ann.asks(recent_events=ann.events))
        story.show(step, page, top=3)
        story.claim(step, "status OK and a full page", _full(page))
        story.claim(
            step, "it says why it is less: session_unavailable", "session_unavailable" in page.provenance.reasons
        )
        story.claim(
            step, "Ann's own clicks, sent along by the client, still count", page.provenance.context_events == _CLICKS
        )
        back_s = await _back(client, ann)
        step.facts = {"killed_pid": pid, "back_after_s": back_s}
        text = "not back" if back_s is None else f"{back_s:.1f} s later it is back, and Ann's session with it"
        story.claim(step, text, back_s is not None)


async def drained(story: Story, service: Service, ann: Shopper, popular: Page) -> None:
    """SIGTERM while requests are in flight."""
    why = "A deploy must cost no page: on SIGTERM the service answers what it has begun, then ends."
    with story.step("Service drained", why) as step:
        async with FeedClient(service.target, timeout_s=5.0) as client:
            calls = [asyncio.create_task(client.get_feed(_new_question(ann, popular, at))) for at in range(_IN_FLIGHT)]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            in_flight = sum(not call.done() for call in calls)
            service.terminate()
            answers = await asyncio.gather(*calls, return_exceptions=True)
        code = await service.ended()
        for failure in (answer for answer in answers if isinstance(answer, BaseException)):
            story.say(f"    {failure!r}")
        answered = sum(isinstance(answer, feed_pb2.GetFeedResponse) for answer in answers)
        step.facts = {"in_flight": in_flight, "answered": answered, "exit_code": code}
        story.say(f"    SIGTERM with {in_flight} of {len(calls)} requests in flight")
        story.claim(
            step, "requests were in flight, and every one was answered", in_flight > 0 and answered == len(calls)
        )
        story.claim(step, "the service ended with exit code 0", code == 0)


def _full(page: Page) -> bool:
    return len(page.items) == PAGE_SIZE


def _ranked(page: Page) -> bool:
    return _full(page) and page.provenance.rung == feed_pb2.RUNG_RANKED and not page.provenance.degraded


def _next_click(story: Story, pages: Sequence[Page], ann: Shopper) -> tuple[str, Page]:
    """An item of a category that Ann did not click in yet, from the third place on; and the page that shows it."""
    seen = {_category(story, event.item_id) for event in ann.events}
    offered = [(item_id, page) for page in pages for item_id in ids(page)[2:]]
    fresh = (offer for offer in offered if _category(story, offer[0]) not in seen)
    return next(fresh, offered[len(ann.events)])


def _category(story: Story, item_id: str) -> str:
    return story.titles.of(item_id)[1] if story.titles else item_id


def _new_question(ann: Shopper, popular: Page, at: int) -> feed_pb2.GetFeedRequest:
    """A question that nobody asked before: a context of its own."""
    first, second = popular.items[at % PAGE_SIZE], popular.items[(at * 7 + 3) % PAGE_SIZE]
    events = [
        feed_pb2.Event(item_id=first.item_id, type=feed_pb2.EVENT_TYPE_VIEW),
        feed_pb2.Event(
            item_id=second.item_id, type=feed_pb2.EVENT_TYPE_CART if at < PAGE_SIZE else feed_pb2.EVENT_TYPE_VIEW
        ),
    ]
    return feed_pb2.GetFeedRequest(user_id=ann.name, surface="drain", page_size=PAGE_SIZE, recent_events=events)


async def server_pid(url: str) -> int:
    """The process of the Redis or Valkey server behind `url`."""
    client = open_client(url, max_connections=1)
    try:
        async with asyncio.timeout(5):
            return int((await client.info("server"))["process_id"])
    finally:
        await client.aclose()


async def _back(client: FeedClient, ann: Shopper) -> float | None:
    """Seconds until Ann's recorded session counts again; None: not within ten."""
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) < _BACK_WITHIN_S:
        page = await client.get_feed(ann.asks())
        if page.provenance.context_events == _CLICKS and not _OUTAGES.intersection(page.provenance.reasons):
            return round(waited, 2)
        await asyncio.sleep(0.1)
    return None


def _now() -> Timestamp:
    stamp = Timestamp()
    stamp.GetCurrentTime()
    return stamp
