from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallback.ladder import Reason
from indexer.contract.features import Context, make_context
from services.domain import EventType, FeedRequest, Priority, ShopEvent
from services.feed.filters import NO_REGION
from services.feed.loaded import Loaded
from services.feed.question import Question, ask
from services.feed.trace import Trace
from tests.feed.shops import open_shop, question
from tests.properties import examples
from tests.snapshots import Shop

REQUEST = FeedRequest("s", "u", "home", "", "", "default", 20, "", (), (), Priority.INTERACTIVE)
EVENTS = st.lists(st.tuples(st.integers(0, 9), st.integers(2, 5)), max_size=6)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return open_shop(tmp_path_factory.mktemp("snapshots"), Shop(count=10, dimension=4, regional=frozenset({9})))


def made(events: list[tuple[int, int]]) -> Context:
    return make_context([row for row, _ in events], [kind for _, kind in events], 20)


def seen(item_id: str, kind: EventType = EventType.VIEW) -> ShopEvent:
    return ShopEvent("", item_id, kind, 0)


def asked(loaded: Loaded, *events: ShopEvent, **changes: Any) -> tuple[Question, tuple[Reason, ...]]:
    trace = Trace(lambda: 0.0)
    return ask(loaded, replace(REQUEST, **changes), events, trace), trace.reasons


def test_nothing_of_a_user_is_in_a_question() -> None:
    assert {part.name for part in fields(Question)} == {"loaded", "surface", "category", "region", "tenant", "context"}


@examples(200)
@given(EVENTS, EVENTS)
def test_keys_are_equal_exactly_when_the_contexts_are(
    loaded: Loaded, one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    first, second = (Question(loaded, "home", "", "", "default", made(events)) for events in (one, other))
    contents = [(made(events).rows.tolist(), made(events).types.tolist()) for events in (one, other)]
    assert (first.key == second.key) == (contents[0] == contents[1])


def test_every_field_is_in_the_key(loaded: Loaded) -> None:
    base = question(loaded, 1, 2)
    assert replace(base).key == base.key
    others = [
        replace(base, surface="x"),
        replace(base, category="x"),
        replace(base, region="x"),
        replace(base, tenant="x"),
    ]
    assert len({one.key for one in (base, *others)}) == 5


def test_words_do_not_run_into_each_other(loaded: Loaded) -> None:
    base = question(loaded, 1)
    assert replace(base, category="ab", region="c").key != replace(base, category="a", region="bc").key


def test_another_snapshot_or_no_ranker_is_another_question(loaded: Loaded, tmp_path: Path) -> None:
    other = open_shop(tmp_path, Shop(count=10, dimension=4, seed=8))
    keys = {question(shop, 1).key for shop in (loaded, other, replace(loaded, ranker=None))}
    assert len(keys) == 3


def test_the_context_is_newest_first_without_impressions_and_unknown_items(loaded: Loaded) -> None:
    events = [seen("i1"), seen("i2"), seen("nobody knows"), seen("i1", EventType.CART)]
    got, reasons = asked(loaded, *events, seen("i3", EventType.IMPRESSION))
    assert got.context.rows.tolist() == [1, 2]
    assert got.context.types.tolist() == [EventType.CART, EventType.VIEW]
    assert reasons == ()


def test_the_context_is_as_long_as_the_snapshot_says(loaded: Loaded) -> None:
    limit = loaded.manifest.query.max_events
    assert limit >= 10
    got, _ = asked(loaded, *(seen(f"i{row % 10}") for row in range(300)))
    assert len(got.context) == min(limit, 10)


def test_what_the_snapshot_does_not_know_is_noted_and_asked_without(loaded: Loaded) -> None:
    got, reasons = asked(loaded, category="hats", region="mars")
    assert (got.category, got.region) == ("", NO_REGION)
    assert reasons == (Reason.UNKNOWN_CATEGORY, Reason.UNKNOWN_REGION)
    got, reasons = asked(loaded, category="tea", region="north")
    assert (got.category, got.region, reasons) == ("tea", "north", ())


def test_all_unknown_regions_ask_one_question(loaded: Loaded) -> None:
    assert asked(loaded, region="mars")[0].key == asked(loaded, region="venus")[0].key
    assert asked(loaded, region="mars")[0].key != asked(loaded)[0].key
