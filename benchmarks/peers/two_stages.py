"""The two stages as Feedline runs them, for any server: session vector, retrieval, blend, rerank.

Loading and scoring are Feedline's own functions, so that what differs between the systems is the server around them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from fallback.ladder import Rung
from indexer.contract.snapshot import current_id, open_snapshot
from services.domain import EventType, FeedRequest, Priority, ShopEvent
from services.feed.answer import Answer
from services.feed.loaded import Loaded
from services.feed.loading import Loader
from services.feed.question import ask
from services.feed.rerank import score
from services.feed.trace import Trace
from services.feed.work import Work

EXACT_SCAN_ITEMS = 10_000
"""As `serve.exact_scan_items` is set where nothing is said."""


class Asked(BaseModel):
    """What a client sends: item ids and types of the session's events, oldest first; no category or region: any."""

    items: list[str] = Field(max_length=100)
    types: list[EventType] = Field(max_length=100)
    category: str = ""
    region: str = ""
    size: int = Field(default=20, ge=1, le=100)


class Ranked(BaseModel):
    """The first items of the ranking, best first, and the rung that they stand on."""

    items: list[str]
    scores: list[float]
    rung: str


class TwoStages:
    """The snapshot that CURRENT names, whole and warmed up. For one thread at a time."""

    def __init__(self, snapshots: Path) -> None:
        name = current_id(snapshots)
        if name is None:
            raise SystemExit(f"{snapshots}: no snapshot is published there")
        loader = Loader(exact_below=EXACT_SCAN_ITEMS, threads=1)
        self._loaded: Loaded = loader.load(open_snapshot(snapshots / name), whole=True)

    def answer(self, asked: Sequence[Asked]) -> list[dict[str, Any]]:
        """The fields of `Ranked` for each, in order; all are scored together."""
        scored = score([Work(ask(self._loaded, *_request(each), Trace(time.monotonic))) for each in asked])
        return [self._fields(one.size, each.answer) for one, each in zip(asked, scored, strict=True)]

    def _fields(self, size: int, answer: Answer) -> dict[str, Any]:
        ranked, _ = answer.order()
        rows = answer.shared.candidates.rows[ranked[:size]].tolist()
        return {
            "items": [self._loaded.items.item_id(row) for row in rows],
            "scores": answer.rank_scores[:size].tolist(),
            "rung": Rung(answer.rung).name,
        }


def _request(asked: Asked) -> tuple[FeedRequest, tuple[ShopEvent, ...]]:
    events = tuple(ShopEvent("", item, kind, 0) for item, kind in zip(asked.items, asked.types, strict=True))
    request = FeedRequest(
        session_id="",
        user_id="",
        surface="default",
        category=asked.category,
        region=asked.region,
        tenant="default",
        page_size=asked.size,
        page_token="",
        recent_events=events,
        exclude_item_ids=(),
        priority=Priority.INTERACTIVE,
    )
    return request, events
