"""A person's history in the feed: recorded, joined, told; slow, gone or damaged; shared with nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import numpy as np
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from cache.redis_link import open_client
from indexer.contract.features import Context
from indexer.contract.history import EMPTY, History
from indexer.contract.manifest import INDEX, RANKER
from indexer.contract.snapshot import snapshot_ids
from indexer.contract.towers import Mode
from protos import feed_pb2
from services.domain import Priority
from services.feed.admission import FULL, PERSONAL
from services.feed.app import FeedApp, open_app
from services.feed.batcher import Stages
from services.feed.question import Question
from services.feed.rerank import Retrieved, rerank, retrieve
from services.feed.state_keys import StateKeys
from services.feed.work import Person, Work
from tests.clock import ManualClock
from tests.damage import flip_byte
from tests.feed.by_hand import ByHand
from tests.feed.conftest import Client, client, settings_for, viewed
from tests.snapshots import CATEGORIES, Shop, publish_shop
from tests.waiting import until

RANKED = feed_pb2.RUNG_RANKED
BLENDED = feed_pb2.RUNG_BLENDED
ANN, NEIGHBOURS, HISTORY, POPULARITY = feed_pb2.Source.values()[1:]
DAY_MS = 86_400_000
NOW_S = 1_800_000_000.0


def ids(page: feed_pb2.GetFeedResponse) -> list[str]:
    return [item.item_id for item in page.items]


def shown(page: feed_pb2.GetFeedResponse) -> list[tuple[str, float, list[int]]]:
    return [(item.item_id, item.score, list(item.sources)) for item in page.items]


def stages(page: feed_pb2.GetFeedResponse) -> list[str]:
    return [stage.stage for stage in page.provenance.stages]


def sources(page: feed_pb2.GetFeedResponse) -> set[int]:
    assert all(item.sources for item in page.items)
    return {source for item in page.items for source in item.sources}


async def buys(feed: Client, user: str, *items: str, session: str = "earlier", ago_days: float = 0) -> None:
    """Records purchases of a session."""
    at = Timestamp()
    events = []
    for number, item in enumerate(items):
        event = viewed(item, event_id=f"{session}-{number}", kind=feed_pb2.EVENT_TYPE_PURCHASE)
        if ago_days:
            at.FromMilliseconds(int(NOW_S * 1000 - ago_days * DAY_MS) + number)
            event.occurred_at.CopyFrom(at)
        events.append(event)
    assert (await feed.record(session, *events, user_id=user)).stored == len(items)


async def test_what_was_bought_in_an_earlier_session_is_in_the_next_feed(feed: Client) -> None:
    before = await feed.feed(user_id="ann", session_id="now", recent_events=[viewed("i5")])
    assert list(before.provenance.reasons) == ["no_history"]
    assert not before.provenance.degraded
    assert before.provenance.history_items == 0
    await buys(feed, "ann", "i500", "i501")
    page = await feed.feed(user_id="ann", session_id="now", recent_events=[viewed("i5")])
    assert (page.provenance.rung, list(page.provenance.reasons)) == (RANKED, [])
    assert page.provenance.history_items == 2
    assert {"i500", "i501"} <= set(ids(page)[:5])
    assert all(HISTORY in item.sources for item in page.items if item.item_id in {"i500", "i501"})
    assert not {"i500", "i501"} & set(ids(before))


async def test_a_feed_with_a_history_shares_what_does_not_depend_on_it(feed: Client) -> None:
    await buys(feed, "ann", "i500")
    first = await feed.feed(user_id="ann", recent_events=[viewed("i5")])
    assert stages(first) == ["session", "key", "cache", "queue", "retrieve", "rerank", "personal", "slate", "total"]
    hit = await feed.feed(user_id="ann", recent_events=[viewed("i5")])
    assert hit.provenance.cache == feed_pb2.CACHE_OUTCOME_LOCAL
    assert stages(hit) == ["session", "key", "cache", "personal", "queue", "slate", "total"]
    stranger = await feed.feed(user_id="bob", recent_events=[viewed("i5")])
    assert stranger.provenance.cache == feed_pb2.CACHE_OUTCOME_LOCAL
    assert "i500" not in ids(stranger)
    assert HISTORY not in sources(stranger)


async def test_hit_and_miss_give_the_same_page(tmp_path: Path, snapshots: Path) -> None:
    async with open_app(settings_for(tmp_path), now=ManualClock(NOW_S)) as app, client(app) as feed:
        await buys(feed, "ann", "i500", "i7", "i3")
        asked = {"user_id": "ann", "recent_events": [viewed("i5"), viewed("i9")], "page_size": 100}
        miss, hit = [await feed.feed(**asked) for _ in range(2)]
        uncached = settings_for(tmp_path, cache={"enabled": False}, state={"url": app.state_url})
        async with open_app(uncached, now=ManualClock(NOW_S)) as other, client(other) as without:
            off = await without.feed(**asked)
    outcomes = [page.provenance.cache for page in (miss, hit, off)]
    assert outcomes == [feed_pb2.CACHE_OUTCOME_MISS, feed_pb2.CACHE_OUTCOME_LOCAL, feed_pb2.CACHE_OUTCOME_OFF]
    assert shown(miss) == shown(hit) == shown(off)


async def test_somebody_with_a_history_and_nothing_else_gets_more_than_popularity(feed: Client) -> None:
    await buys(feed, "ann", "i500")
    page = await feed.feed(user_id="ann", session_id="new")
    assert (page.provenance.rung, list(page.provenance.reasons)) == (RANKED, [])
    assert ids(page)[0] == "i500"
    assert page.provenance.context_events == 0
    assert HISTORY in sources(page)
    assert NEIGHBOURS in sources(page)


async def test_every_item_of_every_rung_names_what_brought_it(feed: Client) -> None:
    assert sources(await feed.feed(page_size=100)) == {POPULARITY}
    assert sources(await feed.feed(page_size=100, category="tea", recent_events=[])) == {POPULARITY}
    page = await feed.feed(recent_events=[viewed("i5")], page_size=100)
    assert sources(page) == {ANN, NEIGHBOURS}
    while page.next_page_token:
        page = await feed.feed(recent_events=[viewed("i5")], page_size=100, page_token=page.next_page_token)
    assert POPULARITY in sources(page)  # what follows when the candidates have ended


@pytest.mark.parametrize("mode", ["shared", "personal"])
async def test_history_and_neighbours_bring_nothing_that_may_not_be_shown(
    tmp_path: Path, snapshots: Path, mode: str
) -> None:
    """gorse-io/gorse#764."""
    async with open_app(settings_for(tmp_path, retrieval={"mode": mode})) as app, client(app) as feed:
        await buys(feed, "ann", "i3", "i10", "i950", "i6", "i7")
        for fields in ({}, {"recent_events": [viewed("i3"), viewed("i950")]}):
            for region, category in (("south", "tea"), ("north", ""), ("", "coffee")):
                token = ""
                seen: list[str] = []
                while True:
                    page = await feed.feed(
                        user_id="ann", region=region, category=category, page_size=100, page_token=token, **fields
                    )
                    assert seen or page.provenance.rung == RANKED
                    seen += ids(page)
                    if not (token := page.next_page_token):
                        break
                rows = [int(item[1:]) for item in seen]
                assert len(rows) == len(set(rows))
                assert not {3, 10} & set(rows)
                assert region == "north" or not region or max(rows) < 900
                assert not category or {row % 3 for row in rows} == {CATEGORIES.index(category)}


async def test_excluded_and_seen_items_are_not_brought_back_by_the_history(feed: Client) -> None:
    await buys(feed, "ann", "i500", "i501")
    asked = {"user_id": "ann", "recent_events": [viewed("i5")]}
    page = await feed.feed(exclude_item_ids=["i500"], **asked)
    assert "i500" not in ids(page)
    assert "i501" in ids(page)
    later = await feed.feed(exclude_item_ids=["i500"], page_token=page.next_page_token, **asked)
    assert not set(ids(page)) & set(ids(later))


async def test_days_since_a_purchase_are_those_of_the_clock(tmp_path: Path, snapshots: Path) -> None:
    clock = ManualClock(NOW_S)
    async with open_app(settings_for(tmp_path), now=clock) as app, client(app) as feed:
        await buys(feed, "ann", "i500", ago_days=10)
        asked = {"user_id": "ann", "recent_events": [viewed("i5")], "page_size": 50}
        scores = []
        for _ in range(2):
            page = await feed.feed(**asked)
            scores.append(next(item.score for item in page.items if item.item_id == "i500"))
            clock.advance(90 * 86_400)
    assert scores[0] - scores[1] == pytest.approx(0.3 * (np.log(101) - np.log(11)), abs=1e-4)


async def test_the_clock_can_be_made_to_stand_still(tmp_path: Path, snapshots: Path) -> None:
    then = datetime(2026, 3, 1, 12, tzinfo=UTC)
    settings = settings_for(tmp_path, serve={"as_of": then})
    async with open_app(settings) as app, client(app) as feed:
        await buys(feed, "ann", "i500")
        known = await app.servicer._line._sessions.read("default", "", "ann")
    assert known.history.items[0].last_ms == 1_772_366_400_000  # noon UTC


async def test_without_a_user_no_history_is_asked_for(feed: Client) -> None:
    page = await feed.feed(recent_events=[viewed("i5")])
    assert list(page.provenance.reasons) == []
    assert "personal" not in stages(page)


async def test_a_damaged_history_costs_the_history_and_says_so(feed: Client, app: FeedApp) -> None:
    await buys(feed, "ann", "i500")
    await feed.record("now", viewed("i5", event_id="e1"), user_id="ann")
    server = open_client(app.state_url, max_connections=1)
    try:
        await server.set(StateKeys("feedline:").history("default", "ann"), b"garbage", ex=60)
    finally:
        await server.aclose()
    page = await feed.feed(user_id="ann", session_id="now")
    assert (page.provenance.rung, list(page.provenance.reasons)) == (RANKED, ["history_unavailable"])
    assert page.provenance.degraded
    assert (page.provenance.context_events, page.provenance.history_items) == (1, 0)


async def test_a_slow_history_is_done_without_and_says_so(tmp_path: Path, snapshots: Path) -> None:
    settings = settings_for(tmp_path, state={"timeout_ms": 30}, cache={"timeout_ms": 30})
    async with open_app(settings) as app, client(app) as feed:
        await buys(feed, "ann", "i500")
        server = open_client(app.state_url, max_connections=1)
        try:
            await server.client_pause(600)
            page = await feed.feed(user_id="ann", recent_events=[viewed("i5")])
        finally:
            await server.aclose()
        assert page.provenance.rung == RANKED
        assert page.provenance.degraded
        assert "history_unavailable" in page.provenance.reasons
        assert "session_unavailable" not in page.provenance.reasons  # nobody asked for one
        assert "i500" not in ids(page)

        async def taking_part() -> int:
            return (await feed.feed(user_id="ann", recent_events=[viewed("i5")])).provenance.history_items

        await until(taking_part, is_=1)


async def test_without_a_permit_for_the_personal_step_the_base_ranking_is_served(feed: Client, app: FeedApp) -> None:
    await buys(feed, "ann", "i500")
    base = await feed.feed(recent_events=[viewed("i5")])
    held = []
    while (permit := app.gate.try_acquire(Priority.INTERACTIVE, PERSONAL)) is not None:
        held.append(permit)
    assert len(held) % FULL == 0
    page = await feed.feed(user_id="ann", recent_events=[viewed("i5")])
    assert (page.provenance.rung, list(page.provenance.reasons)) == (RANKED, ["admission"])
    assert page.provenance.degraded
    assert page.provenance.history_items == 0
    assert shown(page) == shown(base)


def breaks(monkeypatch: pytest.MonkeyPatch, app: FeedApp, on_personal: Callable[[], None]) -> None:
    """Calls `on_personal` on the compute thread before each personal step."""

    def broken(works: Sequence[Work]) -> Sequence[Retrieved]:
        if any(work.answer is not None for work in works):
            on_personal()
        return retrieve(works)

    monkeypatch.setattr(app.batcher, "_stages", Stages(broken, rerank))


async def test_a_personal_step_that_fails_leaves_the_base_ranking(
    feed: Client, app: FeedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("broken")

    await buys(feed, "ann", "i500")
    base = await feed.feed(recent_events=[viewed("i5")])
    breaks(monkeypatch, app, fail)
    page = await feed.feed(user_id="ann", recent_events=[viewed("i5")])
    assert (page.provenance.rung, list(page.provenance.reasons)) == (RANKED, ["scoring_failed"])
    assert shown(page) == shown(base)
    assert app.gate.in_flight == 0


async def test_a_personal_step_that_is_late_leaves_the_base_ranking(
    tmp_path: Path, snapshots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_app(settings_for(tmp_path)) as app, client(app) as feed:
        await buys(feed, "ann", "i500")
        base = await feed.feed(recent_events=[viewed("i5")])
        go = threading.Event()

        def wait() -> None:
            assert go.wait(20)

        breaks(monkeypatch, app, wait)
        request = feed_pb2.GetFeedRequest(user_id="ann", recent_events=[viewed("i5")])
        page = await app.servicer.get_feed(request, 0.3)
        go.set()
    assert (page.provenance.rung, list(page.provenance.reasons)) == (RANKED, ["no_time"])
    assert shown(page) == shown(base)


def only_snapshot(root: Path) -> Path:
    return root / snapshot_ids(root)[0]


async def test_without_an_index_the_blend_of_the_other_sources_is_reranked_and_not_kept(
    tmp_path: Path, snapshots: Path
) -> None:
    flip_byte(only_snapshot(snapshots) / INDEX)
    async with open_app(settings_for(tmp_path)) as app, client(app) as feed:
        await buys(feed, "ann", "i500")
        for _ in range(2):
            page = await feed.feed(user_id="ann", recent_events=[viewed("i5")], page_size=50)
            assert (page.provenance.rung, list(page.provenance.reasons)) == (BLENDED, ["no_index"])
            assert page.provenance.degraded
            assert page.provenance.cache == feed_pb2.CACHE_OUTCOME_MISS
            assert page.provenance.ranker_id == "linear-7"
            assert sources(page) == {NEIGHBOURS, HISTORY, POPULARITY}
            assert ids(page)[0] == "i500"


async def test_without_a_ranker_the_history_is_in_the_blend(tmp_path: Path, snapshots: Path) -> None:
    flip_byte(only_snapshot(snapshots) / RANKER)
    async with open_app(settings_for(tmp_path)) as app, client(app) as feed:
        await buys(feed, "ann", "i500")
        page = await feed.feed(user_id="ann", recent_events=[viewed("i5")])
    assert (page.provenance.rung, list(page.provenance.reasons)) == (feed_pb2.RUNG_RETRIEVED, ["no_ranker"])
    assert "i500" in ids(page)
    assert page.provenance.history_items == 1


async def test_in_personal_mode_nothing_is_shared_or_kept(tmp_path: Path, snapshots: Path) -> None:
    async with open_app(settings_for(tmp_path, retrieval={"mode": "personal"})) as app, client(app) as feed:
        await buys(feed, "ann", "i500")
        for user in ("ann", "ann", "bob"):
            page = await feed.feed(user_id=user, recent_events=[viewed("i5")])
            assert page.provenance.rung == RANKED
            assert page.provenance.cache == feed_pb2.CACHE_OUTCOME_UNUSED
            assert page.provenance.history_items == (user == "ann")
            assert stages(page) == ["session", "key", "personal", "queue", "retrieve", "rerank", "slate", "total"]
        assert not any(app.cache.counters.as_dict().values())


@dataclass
class Buyer:
    """What was recorded of a user, and the history that it makes."""

    bought: dict[int, list[float]] = field(default_factory=dict)
    sessions: int = 0

    def history(self) -> History:
        latest = sorted(self.bought, key=lambda row: -max(self.bought[row]))
        days = [self.bought[row] for row in latest]
        return History(
            np.array(latest, np.int32),
            np.array([len(each) for each in days], np.int32),
            np.array([min(each) for each in days]),
            np.array([max(each) for each in days]),
            self.sessions,
        )


async def recorded(feed: Client, random: Random, *, users: int, items: int) -> dict[str, Buyer]:
    """Sessions in order of time."""
    buyers = {f"user-{number}": Buyer() for number in range(users)}
    for session in range(users * 5):
        name = random.choice(list(buyers))
        ago_days = users * 5 - session
        rows = random.sample(range(items), random.randint(1, 6))
        await buys(feed, name, *(f"i{row}" for row in rows), session=f"s-{session}", ago_days=ago_days)
        buyers[name].sessions += 1
        for number, row in enumerate(rows):
            at_ms = int(NOW_S * 1000 - ago_days * DAY_MS) + number
            buyers[name].bought.setdefault(row, []).append(at_ms / DAY_MS)
    return buyers


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("mode", "tower", "requests"), [("shared", False, 200), ("shared", True, 600), ("personal", True, 200)]
)
async def test_served_scores_are_those_of_the_code_that_the_models_are_learned_with(
    tmp_path: Path, mode: Mode, tower: bool, requests: int
) -> None:
    """1,000 requests, within 1e-4; what was not personal went through float16.

    A session vector of a batch differs in its last bits from the same one made alone. Where that makes a number of it
    round to the next float16, the scores of that request differ by as much as what went through float16.
    """
    publish_shop(tmp_path / "snapshots", Shop(count=300, hidden=frozenset({4, 5}), tower=tower))
    random = Random(11)
    compared, rounded_otherwise = 0, 0
    patient = {"timeout_ms": 20_000}
    settings = settings_for(
        tmp_path,
        retrieval={"mode": mode},
        budget={"page_ms": 60_000, "features_ms": 20_000},
        state=patient,
        cache=patient,
    )
    async with open_app(settings, now=ManualClock(NOW_S)) as app, client(app) as feed:
        buyers = await recorded(feed, random, users=40, items=300)
        loaded = app.live.current()
        assert loaded is not None
        hand = ByHand(loaded)

        async def check(user: str, rows: list[int], category: str) -> int:
            page = await feed.feed(
                user_id=user,
                recent_events=[viewed(f"i{row}") for row in reversed(rows)],
                category=category,
                page_size=100,
            )
            context = Context(np.array(rows, np.int32), np.full(len(rows), feed_pb2.EVENT_TYPE_VIEW, np.uint8))
            asked = Question(loaded, "default", category, "", "default", context)
            history = buyers[user].history() if user in buyers else EMPTY
            found, scores = hand.scores(asked, Person(history, NOW_S / 86_400), mode)
            exact = len(history) > 0 or mode == "personal"
            assert page.provenance.history_items == len(history)
            expected = dict(zip(found.rows[: len(scores)].tolist(), scores.tolist(), strict=True))
            head = [(int(item.item_id[1:]), item.score) for item in page.items][: len(expected)]
            assert {row for row, _ in head} == set(expected)
            nonlocal rounded_otherwise
            worst = max(abs(score - expected[row]) for row, score in head)
            assert worst <= (1e-4 if mode == "personal" else 5e-3)
            rounded_otherwise += exact and worst > 1e-4
            return len(head)

        for _ in range(requests // 20):
            asked: list[Coroutine[None, None, int]] = []
            while len(asked) < 20:
                rows = random.sample(range(300), random.randint(0, 4))
                user = f"user-{random.randrange(44)}"
                if rows or (user in buyers and buyers[user].sessions):
                    asked.append(check(user, rows, random.choice(["", "", *CATEGORIES])))
            compared += sum(await asyncio.gather(*asked))
    assert compared > 40 * requests
    assert rounded_otherwise <= 3
