"""A question: all that a ranking depends on, and nothing else. It has no field for a user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cache.key import content_key
from fallback.ladder import Reason
from indexer.contract.features import Context, make_context
from services.domain import EventType, FeedRequest, ShopEvent
from services.feed.answer import FORMAT
from services.feed.filters import NO_REGION
from services.feed.loaded import Loaded
from services.feed.trace import Trace


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked of a snapshot. `category` and `region` are empty where they do not restrict."""

    loaded: Loaded
    surface: str
    category: str
    region: str
    tenant: str
    context: Context

    @cached_property
    def key(self) -> bytes:
        """The content key: equal for all who ask the same question of the same snapshot and ranker."""
        return content_key(
            "answer",
            {
                "format": FORMAT,
                "snapshot": self.loaded.id,
                "ranker": self.loaded.ranker_id,
                "cascade": f"{self.loaded.cascade.share:g}" if self.loaded.cascade else "",
                "surface": self.surface,
                "category": self.category,
                "region": self.region,
                "tenant": self.tenant,
                "rows": self.context.rows.astype("<i4").tobytes(),
                "types": self.context.types.tobytes(),
            },
        )


def ask(loaded: Loaded, request: FeedRequest, events: Sequence[ShopEvent], trace: Trace) -> Question:
    """The question that a request asks of a snapshot; `events` oldest first. Notes what the snapshot does not know."""
    category = request.category
    if category and loaded.items.category_code(category) is None:
        trace.note(Reason.UNKNOWN_CATEGORY)
        category = ""
    region = request.region
    if region and not loaded.knows_region(region):
        trace.note(Reason.UNKNOWN_REGION)
        region = NO_REGION
    return Question(loaded, request.surface, category, region, request.tenant, context_of(loaded, events))


def context_of(loaded: Loaded, events: Sequence[ShopEvent]) -> Context:
    """The context of events given oldest first: no impressions, no items that the snapshot does not hold."""
    done = [event for event in reversed(events) if event.type is not EventType.IMPRESSION]
    rows = loaded.items.each_row([event.item_id for event in done])
    known = [(row, int(event.type)) for row, event in zip(rows, done, strict=True) if row is not None]
    return make_context([row for row, _ in known], [kind for _, kind in known], loaded.manifest.query.max_events)
