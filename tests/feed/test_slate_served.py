"""The slate's settings, on pages of the real service."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from protos import feed_pb2
from services.feed.app import open_app
from tests.feed.conftest import Client, client, settings_for, viewed

PURCHASE = feed_pb2.EVENT_TYPE_PURCHASE


@asynccontextmanager
async def served(folder: Path, **slate: Any) -> AsyncIterator[Client]:
    async with open_app(settings_for(folder, slate=slate)) as app, client(app) as connected:
        yield connected


async def pages(feed: Client, count: int, **fields: Any) -> list[list[int]]:
    """Item numbers of the first pages."""
    out = []
    token = ""
    for _ in range(count):
        page = await feed.feed(page_token=token, **fields)
        assert not page.provenance.degraded
        assert [item.score for item in page.items] == sorted((item.score for item in page.items), reverse=True)
        out.append([int(item.item_id[1:]) for item in page.items])
        token = page.next_page_token
    return out


async def test_what_was_bought_is_hidden_only_where_the_setting_says_so(tmp_path: Path, snapshots: Path) -> None:
    """Of the history and of the session at hand; what was only viewed is not."""
    shown: dict[bool, set[int]] = {}
    for hide in (False, True):
        async with served(tmp_path, hide_bought=hide) as feed:
            bought = [viewed("i5", "e1", PURCHASE), viewed("i8", "e2", PURCHASE), viewed("i7", "e3")]
            await feed.record("before", *bought, user_id="u")
            now = [viewed("i9", kind=PURCHASE), viewed("i6")]
            found = await pages(feed, 12, user_id="u", session_id="now", recent_events=now, page_size=100)
            shown[hide] = {row for page in found for row in page}
    assert {5, 8} <= shown[False]
    assert shown[False] - shown[True] == {5, 8, 9}


async def test_a_cap_of_categories_holds_on_every_page_but_those_of_one_category(
    tmp_path: Path, snapshots: Path
) -> None:
    """Categories go by the item's number modulo three."""
    async with served(tmp_path, category_cap=3) as feed:
        for context in ([viewed("i5")], []):
            found = await pages(feed, 3, recent_events=context, page_size=9)
            assert [sorted(Counter(row % 3 for row in page).values()) for page in found] == [[3, 3, 3]] * 3
            assert len({row for page in found for row in page}) == 27
        (tea,) = await pages(feed, 1, recent_events=[viewed("i5")], category="tea", page_size=9)
        assert [row % 3 for row in tea] == [0] * 9


async def test_marginal_relevance_changes_the_order_and_no_page_repeats_another(
    tmp_path: Path, snapshots: Path
) -> None:
    made = []
    for weight in (1.0, 0.5):
        async with served(tmp_path, mmr=weight) as feed:
            found = await pages(feed, 3, recent_events=[viewed("i5"), viewed("i6")], page_size=10)
        assert len({row for page in found for row in page}) == 30
        made.append(found)
    assert made[0][0][0] == made[1][0][0]
    assert made[0][0] != made[1][0]
