"""REST: the same line as gRPC, behind the same validation, and what the page needs beside it."""

from __future__ import annotations

import hmac
import math
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import JSONResponse

from indexer.contract.items import ItemTable
from services.console.convert import events_answer, events_message, feed_answer, feed_message
from services.console.faults import Unauthorised
from services.console.schema import CatalogueItem, EventsAnswer, EventsBody, FeedAnswer, FeedBody, ItemsAnswer, faults
from services.feed.live import Live
from services.feed.servicer import FeedServicer

TimeoutHeader = Annotated[
    float | None,
    Header(
        alias="X-Request-Timeout-Ms",
        gt=0,
        le=60_000,
        allow_inf_nan=False,
        description="Milliseconds that the caller waits, as a gRPC deadline would say. Default: the page budget alone.",
    ),
]
_BEARER = "bearer "


def api(servicer: FeedServicer, live: Live, write_token: str) -> APIRouter:
    """The routes under /v1. With a `write_token`, storing events needs it as a bearer token."""
    router = APIRouter(prefix="/v1", tags=["feed"])

    def may_write(request: Request) -> None:
        if write_token:
            check_token(request.headers.get("authorization", ""), write_token)

    @router.post("/feed", response_model=FeedAnswer, responses=faults(400, 413), summary="One page of a feed")
    async def feed(body: FeedBody, timeout_ms: TimeoutHeader = None) -> JSONResponse:
        """A valid request is always answered 200; when the service is late or broken, `provenance` says so."""
        caller_s = None if timeout_ms is None else timeout_ms / 1e3
        return JSONResponse(feed_answer(await servicer.get_feed(feed_message(body), caller_s)))

    @router.post(
        "/events",
        response_model=EventsAnswer,
        responses=faults(400, 401, 413, 503),
        dependencies=[Depends(may_write)],
        summary="Store what a shopper did",
    )
    async def events(body: EventsBody) -> JSONResponse:
        """200 only after the events are stored; the next feed of the session counts them."""
        return JSONResponse(events_answer(await servicer.record_events(events_message(body))))

    @router.get("/items", response_model=ItemsAnswer, responses=faults(400), summary="Items of the snapshot")
    def items(
        query: Annotated[str, Query(max_length=256, description="Part of a title or an id, any case.")] = "",
        limit: Annotated[int, Query(ge=1, le=100, description="With `query`: at most so many.")] = 20,
        id: Annotated[list[str], Query(max_length=100, description="Exactly these items.")] = [],  # noqa: A002, B006
    ) -> JSONResponse:
        """The most popular available items that hold `query`, or the items of these ids; unknown ids are left out."""
        loaded = live.current()
        if loaded is None:
            return JSONResponse({"snapshot_id": "", "items": []})
        rows = loaded.items.rows(id) if id else loaded.items.find(query, limit)
        found = [_item(loaded.items, row).model_dump() for row in rows]
        return JSONResponse({"snapshot_id": loaded.id, "items": found})

    return router


def check_token(header: str, token: str) -> None:
    """Compares in constant time. Raises Unauthorised."""
    if header[: len(_BEARER)].lower() != _BEARER:
        raise Unauthorised('expected "Bearer" and the write token')
    if not hmac.compare_digest(header[len(_BEARER) :].strip().encode("latin-1"), token.encode()):
        raise Unauthorised("is not the write token")


def _item(items: ItemTable, row: int) -> CatalogueItem:
    price = float(items.price[row])
    return CatalogueItem(
        item_id=items.item_id(row),
        title=items.title(row),
        category=items.category_name(row),
        price=None if math.isnan(price) else round(price, 4),
        available=bool(items.available[row]),
    )
