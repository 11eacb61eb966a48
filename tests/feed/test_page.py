"""The request's line, over real gRPC, against a real snapshot and a real Valkey."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from cache.feed_cache import Compute, Found
from protos import feed_pb2
from services.feed.app import FeedApp, open_app
from tests.feed.conftest import Client, client, settings_for, viewed
from tests.snapshots import Shop, publish_shop
from tests.waiting import until

RANKED = feed_pb2.RUNG_RANKED
POPULAR = feed_pb2.RUNG_POPULAR
POPULAR_CATEGORY = feed_pb2.RUNG_POPULAR_CATEGORY
LOCAL = feed_pb2.CACHE_OUTCOME_LOCAL
SHARED = feed_pb2.CACHE_OUTCOME_SHARED
MISS = feed_pb2.CACHE_OUTCOME_MISS


def ids(page: feed_pb2.GetFeedResponse) -> list[str]:
    return [item.item_id for item in page.items]


def stages(page: feed_pb2.GetFeedResponse) -> list[str]:
    return [stage.stage for stage in page.provenance.stages]


async def test_a_shopper_without_context_gets_the_popularity_list_and_is_not_degraded(feed: Client) -> None:
    page = await feed.feed(session_id="new")
    assert page.provenance.rung == POPULAR
    assert not page.provenance.degraded
    assert list(page.provenance.reasons) == ["no_context"]
    assert ids(page)[:4] == ["i0", "i1", "i2", "i4"]  # i3 is hidden
    assert [item.rank for item in page.items] == list(range(1, 21))


async def test_an_event_recorded_is_in_the_very_next_feed(feed: Client) -> None:
    """metarank/metarank#698: writes were buffered for a second, so that ranking missed fresh feedback."""
    before: list[str] = []
    for count, item in enumerate(["i7", "i8", "i9"], 1):
        recorded = await feed.record("s1", viewed(item, event_id=f"e{count}"))
        assert recorded.stored == 1
        page = await feed.feed(session_id="s1")
        assert page.provenance.context_events == count
        assert page.provenance.rung == RANKED
        assert ids(page) != before
        assert item not in ids(page)  # what the session has seen is no candidate for it
        before = ids(page)


async def test_a_ranked_page_says_where_it_comes_from(feed: Client) -> None:
    page = await feed.feed(recent_events=[viewed("i5")])
    source = page.provenance
    assert (source.rung, source.degraded, list(source.reasons), source.cache) == (RANKED, False, [], MISS)
    assert source.snapshot_id == "20260101T000000Z-00000007"
    assert source.ranker_id == "linear-7"
    assert source.response_id
    assert stages(page) == ["session", "key", "cache", "queue", "retrieve", "rerank", "slate", "total"]
    assert all(stage.milliseconds >= 0 for stage in source.stages)
    scores = [item.score for item in page.items]
    assert scores == sorted(scores, reverse=True)


async def test_another_shopper_with_the_same_question_hits(feed: Client) -> None:
    first = await feed.feed(session_id="a", user_id="ann", recent_events=[viewed("i5")])
    second = await feed.feed(session_id="b", user_id="bob", recent_events=[viewed("i5")])
    assert second.provenance.cache == LOCAL
    assert "retrieve" not in stages(second)
    assert ids(first) == ids(second)
    assert first.provenance.response_id != second.provenance.response_id


async def test_another_process_finds_the_answer_in_the_shared_tier(app: FeedApp, tmp_path: Path) -> None:
    settings = settings_for(tmp_path, state={"url": app.state_url})
    async with open_app(settings) as other, client(app) as one, client(other) as two:
        first = await one.feed(recent_events=[viewed("i5")])
        await until(lambda: app.cache.counters.written, is_=1)
        second = await two.feed(recent_events=[viewed("i5")])
        assert second.provenance.cache == SHARED
        assert ids(first) == ids(second)


async def test_concurrent_askers_of_one_question_are_one_computation(feed: Client, app: FeedApp) -> None:
    pages = await asyncio.gather(*(feed.feed(recent_events=[viewed("i6")]) for _ in range(20)))
    outcomes = [page.provenance.cache for page in pages]
    assert outcomes.count(MISS) == 1
    assert set(outcomes) <= {MISS, feed_pb2.CACHE_OUTCOME_JOINED, LOCAL}
    assert app.gate.in_flight == 0


async def test_a_person_who_waits_does_not_share_the_refusal_of_a_prefetch(tmp_path: Path, snapshots: Path) -> None:
    async with open_app(settings_for(tmp_path, scoring={"prefetch_share": 0})) as app, client(app) as feed:
        priorities = [feed_pb2.PRIORITY_PREFETCH, feed_pb2.PRIORITY_INTERACTIVE]
        asked = [feed.feed(recent_events=[viewed("i5")], priority=priority) for priority in priorities]
        prefetched, shown = await asyncio.gather(*asked)
        assert list(prefetched.provenance.reasons) == ["admission"]
        assert shown.provenance.rung == RANKED


async def test_pages_follow_each_other_without_a_repeat_until_nothing_is_left(feed: Client) -> None:
    seen: list[str] = []
    token = ""
    for _ in range(30):
        page = await feed.feed(recent_events=[viewed("i5")], page_size=50, page_token=token)
        assert [item.rank for item in page.items] == list(range(len(seen) + 1, len(seen) + len(page.items) + 1))
        seen += ids(page)
        token = page.next_page_token
        if not token:
            break
    assert not token
    assert len(seen) == len(set(seen)) >= 500
    assert not {"i3", "i10"} & set(seen)


async def test_what_a_page_showed_is_not_shown_again_on_another_rung(feed: Client) -> None:
    first = await feed.feed(page_size=30)  # popular
    second = await feed.feed(page_size=100, page_token=first.next_page_token, recent_events=[viewed("i0")])
    assert second.provenance.rung == RANKED
    assert not set(ids(first)) & set(ids(second))


async def test_excluded_items_are_on_no_rung(feed: Client) -> None:
    for events in ([], [viewed("i0")]):
        page = await feed.feed(page_size=100, exclude_item_ids=["i0", "i1", "unknown"], recent_events=events)
        assert not {"i0", "i1"} & set(ids(page))
        assert len(page.items) == 100


async def test_a_hidden_item_is_on_no_rung(feed: Client) -> None:
    """gorse-io/gorse#764: hidden items were still shown on most paths."""
    for fields in ({}, {"recent_events": [viewed("i3")]}, {"category": "tea"}, {"region": "north"}):
        token = ""
        while True:
            page = await feed.feed(page_size=100, page_token=token, **fields)
            assert not {"i3", "i10"} & set(ids(page))
            if not (token := page.next_page_token):
                break


async def test_a_category_shows_only_its_items(feed: Client) -> None:
    for events, rung in (([], POPULAR_CATEGORY), ([viewed("i1")], RANKED)):
        page = await feed.feed(category="tea", page_size=100, recent_events=events)
        assert page.provenance.rung == rung
        assert all(int(item[1:]) % 3 == 0 for item in ids(page))
        assert len(page.items) == 100


async def test_an_unknown_category_is_answered_over_all_and_says_so(feed: Client) -> None:
    page = await feed.feed(category="cars")
    assert len(page.items) == 20
    assert list(page.provenance.reasons) == ["unknown_category", "no_context"]
    assert not page.provenance.degraded


async def test_a_page_is_full_as_long_as_anything_may_be_shown(feed: Client) -> None:
    """This shop's popularity lists hold 500 items."""
    popular = [f"i{row}" for row in range(502)]
    for given in ([], [viewed("i5")]):
        page = await feed.feed(exclude_item_ids=popular[:500], recent_events=given, page_size=100)
        assert len(page.items) == 100
        assert not set(ids(page)) & set(popular[:500])
    page = await feed.feed(exclude_item_ids=popular[2:], page_size=5, region="south")
    assert ids(page) == ["i0", "i1", "i502", "i503", "i504"]
    scores = [item.score for item in page.items]
    assert scores == sorted(scores, reverse=True)


async def test_a_region_shows_what_may_be_shown_there(feed: Client) -> None:
    north = await feed.feed(region="north", page_size=100, recent_events=[viewed("i950")])
    south = await feed.feed(region="south", page_size=100, recent_events=[viewed("i950")])
    assert any(int(item[1:]) >= 900 for item in ids(north))
    assert all(int(item[1:]) < 900 for item in ids(south))
    assert list(south.provenance.reasons) == ["unknown_region"]


async def test_a_page_that_fails_still_shows_only_what_may_be_shown_there(
    feed: Client, app: FeedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(key: bytes, compute: Compute, *, lane: bytes = b"") -> Found:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(app.cache, "get", fail)
    page = await feed.feed(recent_events=[viewed("i5")], category="tea", region="south", page_size=100)
    assert list(page.provenance.reasons) == ["unknown_region", "internal_error"]
    assert page.provenance.rung == POPULAR_CATEGORY
    assert len(page.items) == 100
    token = page.next_page_token
    shown = ids(page)
    while token:
        page = await feed.feed(category="tea", region="south", page_size=100, page_token=token)
        shown += ids(page)
        token = page.next_page_token
    assert all(int(item[1:]) % 3 == 0 and int(item[1:]) < 900 for item in shown)


async def test_a_failure_that_nobody_foresaw_tells_the_caller_nothing_of_its_inside(
    feed: Client, app: FeedApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(message: feed_pb2.RecordEventsRequest) -> feed_pb2.RecordEventsResponse:
        raise RuntimeError("of user u-17")

    monkeypatch.setattr(app.servicer, "record_events", fail)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await feed.record("s1", viewed("i5", event_id="e1"))
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert refused.value.details() == "failed within the service"


async def test_unknown_users_and_items_answer_a_feed(feed: Client) -> None:
    """NVIDIA-Merlin/systems#207: unknown users, topk > n and missing features broke the pipeline."""
    page = await feed.feed(session_id="never seen", user_id="nobody", recent_events=[viewed("not in the catalogue")])
    assert len(page.items) == 20
    assert page.provenance.context_events == 0


@pytest.mark.parametrize("count", [1, 2, 60])
async def test_a_shop_smaller_than_a_page_is_shown_whole(tmp_path: Path, count: int) -> None:
    publish_shop(tmp_path / "snapshots", Shop(count=count))
    async with open_app(settings_for(tmp_path)) as app, client(app) as feed:
        for events in ([], [viewed("i0")]):
            page = await feed.feed(page_size=100, recent_events=events)
            assert sorted(ids(page)) == sorted(f"i{row}" for row in range(count))
            assert not page.next_page_token


async def test_impressions_are_no_context(feed: Client) -> None:
    await feed.record("s1", viewed("i7", event_id="e1", kind=feed_pb2.EVENT_TYPE_IMPRESSION))
    page = await feed.feed(session_id="s1", recent_events=[viewed("i8", kind=feed_pb2.EVENT_TYPE_IMPRESSION)])
    assert page.provenance.context_events == 0


async def test_an_event_that_is_both_recorded_and_given_counts_once(feed: Client) -> None:
    await feed.record("s1", viewed("i7", event_id="e1"))
    alone = await feed.feed(session_id="s1")
    both = await feed.feed(session_id="s1", recent_events=[viewed("i7", event_id="e1")])
    assert both.provenance.context_events == 1
    assert ids(alone) == ids(both)


async def test_a_repeated_event_is_stored_once(feed: Client) -> None:
    await feed.record("s1", viewed("i7", event_id="e1"))
    again = await feed.record("s1", viewed("i7", event_id="e1"), viewed("i8", event_id="e2"))
    assert (again.stored, again.repeated_events) == (1, 1)


async def test_a_page_token_of_another_snapshot_starts_over(feed: Client, app: FeedApp, snapshots: Path) -> None:
    first = await feed.feed()
    publish_shop(snapshots, Shop(seed=8), age=1)
    await asyncio.to_thread(app.live.refresh)
    page = await feed.feed(page_token=first.next_page_token)
    assert page.provenance.snapshot_id == "20260102T000000Z-00000008"
    assert "page_token_restarted" in page.provenance.reasons
    assert page.items[0].rank == 1
    assert not page.provenance.degraded


@pytest.mark.parametrize("milliseconds", [0, 1, 5])
async def test_a_deadline_that_leaves_no_time_to_score_is_answered_from_the_ladder(
    app: FeedApp, milliseconds: int
) -> None:
    request = feed_pb2.GetFeedRequest(recent_events=[viewed("i5")])
    page = await app.servicer.get_feed(request, milliseconds / 1e3)
    assert page.provenance.rung == POPULAR
    assert page.provenance.degraded
    assert "no_time" in page.provenance.reasons


async def test_a_closed_door_is_answered_from_the_ladder(tmp_path: Path, snapshots: Path) -> None:
    settings = settings_for(tmp_path, scoring={"prefetch_share": 0.0})
    async with open_app(settings) as app, client(app) as feed:
        page = await feed.feed(recent_events=[viewed("i5")], priority=feed_pb2.PRIORITY_PREFETCH)
        assert (page.provenance.rung, list(page.provenance.reasons)) == (POPULAR, ["admission"])
        page = await feed.feed(recent_events=[viewed("i5")])
        assert page.provenance.rung == RANKED


async def test_a_closed_door_reads_nothing_of_session_and_user(tmp_path: Path, snapshots: Path) -> None:
    settings = settings_for(tmp_path, scoring={"prefetch_share": 0.0})
    async with open_app(settings) as app, client(app) as feed:
        await feed.record("s1", viewed("i5", event_id="e1"))
        page = await feed.feed(session_id="s1", priority=feed_pb2.PRIORITY_PREFETCH)
        assert (page.provenance.rung, list(page.provenance.reasons)) == (POPULAR, ["admission"])
        assert "session" not in stages(page)
        page = await feed.feed(session_id="s1")
        assert (page.provenance.rung, page.provenance.context_events) == (RANKED, 1)


async def test_at_a_closed_door_an_answer_that_is_kept_is_served_to_who_asks_by_its_own_events(
    tmp_path: Path, snapshots: Path
) -> None:
    settings = settings_for(tmp_path, scoring={"prefetch_share": 0.0})
    async with open_app(settings) as app, client(app) as feed:
        shown = await feed.feed(recent_events=[viewed("i5")])
        kept = await feed.feed(recent_events=[viewed("i5")], priority=feed_pb2.PRIORITY_PREFETCH)
        assert (kept.provenance.rung, kept.provenance.cache, list(kept.provenance.reasons)) == (RANKED, LOCAL, [])
        assert ids(kept) == ids(shown)


async def test_the_popularity_page_is_made_once_and_followed_by_pages_of_its_own(feed: Client, app: FeedApp) -> None:
    first = await feed.feed(page_size=5)
    again = await feed.feed(page_size=5)
    assert ids(first) == ids(again)
    assert first.provenance.response_id != again.provenance.response_id
    without = await feed.feed(page_size=5, exclude_item_ids=[ids(first)[0]])
    assert ids(without)[:4] == ids(first)[1:]
    following = await feed.feed(page_size=5, page_token=again.next_page_token)
    assert not set(ids(following)) & set(ids(first))


async def test_the_cache_can_be_switched_off(tmp_path: Path, snapshots: Path) -> None:
    async with open_app(settings_for(tmp_path, cache={"enabled": False})) as app, client(app) as feed:
        for _ in range(2):
            page = await feed.feed(recent_events=[viewed("i5")])
            assert page.provenance.cache == feed_pb2.CACHE_OUTCOME_OFF


async def test_events_without_an_id_are_refused_by_name(feed: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await feed.record("s1", viewed("i1", event_id="e1"), viewed("i2"))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused.value.details() == "events[1].event_id: is required"
    page = await feed.feed(session_id="s1")
    assert page.provenance.context_events == 0  # none of them was stored
