"""The one bounded queue: concurrent work meets here and is done in batches, in two stages, by the compute thread."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from fallback.ladder import Reason
from services.deadline import Clock
from services.errors import NotScored
from services.feed.admission import Outcome, Permit
from services.feed.rerank import Retrieved, Scored
from services.feed.work import Work

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stages:
    """The two stages of scoring: one result for each piece of work, in order."""

    retrieve: Callable[[Sequence[Work]], Sequence[Retrieved]]
    rerank: Callable[[Sequence[Work], Sequence[Retrieved]], Sequence[Scored]]


@dataclass(frozen=True, slots=True, eq=False)
class _Entry:
    work: Work
    expires_at: float
    entered_at: float
    future: asyncio.Future[tuple[Scored, float]]


class Batcher:
    """Takes a batch whenever the compute thread is free; every future ends.

    The stages run on the compute thread, on at most `max_batch` pieces of work that come to at most `max_pairs` pairs
    of a question and a candidate, of whatever kinds. What is cancelled or late is dropped before each stage. When a
    batch fails, it is rerun one by one. `observe_batch(size)` and `observe_drop(why)` are called for the metrics.
    """

    def __init__(
        self,
        stages: Stages,
        *,
        max_queue: int,
        max_batch: int,
        max_pairs: int,
        max_delay_s: float,
        clock: Clock,
        observe_batch: Callable[[int], None],
        observe_drop: Callable[[str], None],
    ) -> None:
        self._stages = stages
        self._max_queue = max_queue
        self._max_batch = max_batch
        self._max_pairs = max_pairs
        self._max_delay_s = max_delay_s
        self._clock = clock
        self._observe_batch = observe_batch
        self._observe_drop = observe_drop
        self._queue: deque[_Entry] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    def start(self) -> None:
        """Starts the compute thread; to be called on the event loop that will submit."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def submit(self, permit: Permit, work: Work, expires_at: float) -> tuple[Scored, float]:
        """What the work came to and the seconds that it waited in the queue. Ends the permit.

        Raises NotScored when the queue is full, when `expires_at` (on the clock) passes first, or when scoring fails;
        ValueError for work that no batch has room for.
        """
        outcome = Outcome.DROPPED
        try:
            result = await self._wait(work, expires_at)
            outcome = Outcome.SUCCESS
            return result
        except asyncio.CancelledError:
            outcome = Outcome.IGNORED
            raise
        finally:
            permit.end(outcome)

    async def _wait(self, work: Work, expires_at: float) -> tuple[Scored, float]:
        if work.pairs > self._max_pairs:
            raise ValueError(f"work of {work.pairs} pairs, expected at most {self._max_pairs}: see scoring.max_pairs")
        loop = asyncio.get_running_loop()
        now = self._clock()
        entry = _Entry(work, expires_at, now, loop.create_future())
        with self._wake:
            if self._closed or len(self._queue) >= self._max_queue:
                raise NotScored(Reason.QUEUE_FULL)
            self._queue.append(entry)
            self._wake.notify()
        try:
            async with asyncio.timeout(max(0.0, expires_at - now)):
                return await entry.future
        except TimeoutError:
            self._leave(entry, "expired")
            raise NotScored(Reason.NO_TIME, "in the queue") from None
        except asyncio.CancelledError:
            self._leave(entry, "cancelled")
            raise

    def _leave(self, entry: _Entry, why: str) -> None:
        """Gives the place in the queue back at once: what nobody waits for keeps nobody out."""
        with self._wake:
            if entry not in self._queue:
                return
            self._queue.remove(entry)
        self._observe_drop(why)

    def close(self) -> None:
        """Ends the compute thread after the batch in hand; what is still queued fails with QUEUE_FULL."""
        with self._wake:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._wake.notify()
        for entry in left:
            if not entry.future.done():
                entry.future.set_exception(NotScored(Reason.QUEUE_FULL, "closing"))
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while batch := self._take():
            now = self._clock()
            results = self._answer(batch)
            waits = [now - entry.entered_at for entry in batch]
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(_settle, batch, results, waits)
            except RuntimeError:  # the event loop is closed: nobody waits any more
                return

    def _take(self) -> list[_Entry]:
        """The next batch; empty when closed."""
        while True:
            with self._wake:
                idle = not self._queue
                while not self._queue and not self._closed:
                    self._wake.wait()
                if idle and self._max_delay_s and not self._full_or_closed():
                    self._wake.wait_for(self._full_or_closed, self._max_delay_s)
                if self._closed:
                    return []
                if batch := self._first():
                    return batch

    def _full_or_closed(self) -> bool:
        """Whether to wait for company is to no avail: one batch or more is there, or nothing will come."""
        pairs = sum(entry.work.pairs for entry in self._queue)
        return len(self._queue) >= self._max_batch or pairs >= self._max_pairs or self._closed

    def _first(self) -> list[_Entry]:
        """Takes the first of the queue that still are wanted, as many as one batch has room for, in order."""
        batch: list[_Entry] = []
        room = self._max_pairs
        while self._queue and len(batch) < self._max_batch and self._queue[0].work.pairs <= room:
            entry = self._queue.popleft()
            if self._wanted(entry):
                batch.append(entry)
                room -= entry.work.pairs
        return batch

    def _wanted(self, entry: _Entry) -> bool:
        """Whether somebody still waits for it: asked before work costs anything."""
        if entry.future.done():
            self._observe_drop("cancelled")
        elif entry.expires_at <= self._clock():
            self._observe_drop("expired")
        else:
            return True
        return False

    def _answer(self, batch: list[_Entry]) -> list[Scored | NotScored]:
        self._observe_batch(len(batch))
        try:
            return self._both_stages(batch)
        except BaseException as error:  # noqa: BLE001 - whatever it was, no future may be left open
            if len(batch) == 1:
                return [_as_not_scored(error)]
        out: list[Scored | NotScored] = []
        for entry in batch:
            out += self._answer([entry]) if self._wanted(entry) else [NotScored(Reason.NO_TIME, "in a failed batch")]
        return out

    def _both_stages(self, batch: list[_Entry]) -> list[Scored | NotScored]:
        found = self._stages.retrieve([entry.work for entry in batch])
        _require_one_each(found, batch)
        left = [(entry, each) for entry, each in zip(batch, found, strict=True) if self._wanted(entry)]
        if not left:
            return [NotScored(Reason.NO_TIME, "after retrieval") for _ in batch]
        scored = self._stages.rerank([entry.work for entry, _ in left], [each for _, each in left])
        _require_one_each(scored, left)
        results = {id(entry): each for (entry, _), each in zip(left, scored, strict=True)}
        return [results.get(id(entry)) or NotScored(Reason.NO_TIME, "after retrieval") for entry in batch]


def _require_one_each(results: Sequence[object], asked: Sequence[object]) -> None:
    if len(results) != len(asked):
        raise ValueError(f"{len(results)} answers to {len(asked)} pieces of work")


def _as_not_scored(error: BaseException) -> NotScored:
    if isinstance(error, NotScored):
        return error
    log.error("scoring failed", error=repr(error))
    return NotScored(Reason.SCORING_FAILED, repr(error))


def _settle(batch: list[_Entry], results: list[Scored | NotScored], waits: list[float]) -> None:
    for entry, result, waited in zip(batch, results, waits, strict=True):
        if entry.future.done():
            continue
        if isinstance(result, NotScored):
            entry.future.set_exception(result)
        else:
            entry.future.set_result((result, waited))
