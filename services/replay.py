"""Walks a running service through past sessions: its clock is set to each moment, what was done by then is recorded,
and a feed is asked for and paged through.

Quality is what is asked about: budgets and time-outs are so long that a busy machine does not lower it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import grpc
import numpy as np
from google.protobuf.timestamp_pb2 import Timestamp

from indexer.contract.purchases import UserPurchases
from indexer.contract.towers import Mode
from indexer.contract.visits import AT_ONCE, Answered, Deed, Visit
from protos import feed_pb2
from services.client import FeedClient
from services.errors import StartError
from services.feed.app import open_app
from services.history_load import load_histories
from services.settings import Settings

_Answer = TypeVar("_Answer")
_TIMEOUT_S = 60.0
_PAGE = 100
_TOGETHER = 8
"""Calls at once."""


@dataclass(slots=True)
class Clock:
    """The service's idea of now, in seconds since 1970."""

    at_s: float = 0.0

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.at_s


def replay(
    settings: Settings,
    snapshots: Path,
    histories: Sequence[UserPurchases],
    visits: Sequence[Visit],
    advance: Callable[[int], None],
    *,
    mode: Mode,
    depth: int,
) -> list[Answered]:
    """Serves CURRENT of `snapshots` in this process to the visits, which must be in order of time; `depth` items each.

    State lives in a server of its own, which is gone afterwards. `advance` is told how many visits are answered.
    Raises StartError when the service does not start, or answers a call with a status.
    """
    with TemporaryDirectory(prefix="feedline-replay-") as folder:
        patient = patient_settings(settings, snapshots, Path(folder), mode)
        try:
            return asyncio.run(_replay(patient, histories, visits, advance, depth))
        except grpc.aio.AioRpcError as error:
            raise StartError(f"the service answered {error.code().name}: {error.details()}") from error


def patient_settings(settings: Settings, snapshots: Path, folder: Path, mode: Mode) -> Settings:
    """The user's settings on a free port of loopback, with state in `folder`, no console, and all the time needed."""
    changed: dict[str, dict[str, Any]] = {
        "serve": {"host": "127.0.0.1", "port": 0, "tls_certificate": None, "tls_key": None, "tls_client_ca": None},
        "budget": {"page_ms": 60_000.0, "features_ms": 10_000.0},
        "console": {"enabled": False},
        "snapshots": {"folder": snapshots, "watch_s": 0.0},
        "cache": {"url": "", "timeout_ms": 10_000.0},
        "state": {"url": "", "folder": folder, "timeout_ms": 10_000.0, "write_timeout_ms": 10_000.0},
        "scoring": {"admission": "fixed"},
        "retrieval": {"mode": mode},
    }
    changed["serve"] |= {"lame_duck_s": 0.0}
    update = {name: getattr(settings, name).model_copy(update=values) for name, values in changed.items()}
    return settings.model_copy(update=update)


async def _replay(
    settings: Settings,
    histories: Sequence[UserPurchases],
    visits: Sequence[Visit],
    advance: Callable[[int], None],
    depth: int,
) -> list[Answered]:
    clock = Clock(visits[0].at_ms / 1e3 if visits else 0.0)
    answers: list[Answered] = []
    async with open_app(settings, now=clock) as app:
        await load_histories(settings.state, app.state_url, _from(histories), "replay", lambda users: None)
        async with FeedClient(f"127.0.0.1:{app.grpc_port}", timeout_s=_TIMEOUT_S) as client:
            for at_ms, group in groupby(enumerate(visits), key=lambda one: one[1].at_ms):
                together = list(group)
                clock.at_s = at_ms / 1e3
                await _each(_record(client, visit) for _, visit in together)
                answers += await _each(_ask(client, visit, number, depth) for number, visit in together)
                advance(len(together))
    return answers


def _from(histories: Sequence[UserPurchases]) -> Callable[[int], Iterator[UserPurchases]]:
    return lambda first: iter(histories[first:])


async def _record(client: FeedClient, visit: Visit) -> None:
    """In order of time: a call after the other."""
    for session_id, deeds in visit.before:
        events = [_event(deed, f"{session_id}-{deed.at_ms}-{place}") for place, deed in enumerate(deeds)]
        for first in range(0, len(events), AT_ONCE):
            part = events[first : first + AT_ONCE]
            request = feed_pb2.RecordEventsRequest(session_id=session_id, user_id=visit.user_id, events=part)
            await client.record_events(request)


async def _ask(client: FeedClient, visit: Visit, number: int, depth: int) -> Answered:
    """All pages up to `depth` items. The session's id is a new one: what is known of it is said, not read."""
    request = feed_pb2.GetFeedRequest(
        session_id=f"asked-{number}",
        user_id=visit.user_id,
        recent_events=[_event(deed) for deed in visit.known],
        page_size=_PAGE,
    )
    pages = [await client.get_feed(request)]
    while pages[-1].next_page_token and sum(len(page.items) for page in pages) < depth:
        request.page_token = pages[-1].next_page_token
        pages.append(await client.get_feed(request))
    first = pages[0]
    return Answered(
        item_ids=tuple(item.item_id for page in pages for item in page.items)[:depth],
        scores=np.array([item.score for item in first.items][:depth], np.float32),
        rung=feed_pb2.Rung.Name(first.provenance.rung).removeprefix("RUNG_"),
        reasons=tuple(first.provenance.reasons),
        pages=len(pages),
        degraded=sum(page.provenance.degraded for page in pages),
    )


async def _each(calls: Iterable[Coroutine[Any, Any, _Answer]]) -> list[_Answer]:
    """The results of all calls, in order; a few at a time."""
    slots = asyncio.Semaphore(_TOGETHER)

    async def one(call: Coroutine[Any, Any, _Answer]) -> _Answer:
        async with slots:
            return await call

    return await asyncio.gather(*map(one, calls))


def _event(deed: Deed, event_id: str = "") -> feed_pb2.Event:
    moment = Timestamp()
    moment.FromMilliseconds(deed.at_ms)
    return feed_pb2.Event(
        event_id=event_id, item_id=deed.item_id, type=feed_pb2.EventType.ValueType(deed.type), occurred_at=moment
    )
