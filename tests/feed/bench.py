"""A batcher on a bench: real threads, a real event loop, a scorer that the test holds shut and that remembers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from fallback.ladder import Reason
from indexer.contract.blend import ANN, BlendSpec, ranked_list
from indexer.contract.sources import Shared
from services.domain import Priority
from services.errors import NotScored
from services.feed.admission import Gate
from services.feed.answer import Answer
from services.feed.batcher import Batcher, Stages
from services.feed.limit import FixedLimit
from services.feed.loaded import Loaded
from services.feed.rerank import Retrieved, Scored
from services.feed.work import Person, Work
from tests.feed.shops import question

FAR = 60.0
FULL_PAIRS = 550
PERSONAL_PAIRS = 50
"""Of a full scoring, 500 found and 50 reranked; of a personal step."""


def answer_to(asked: Work) -> Scored:
    """An answer that names its question, so that a mix-up shows."""
    found = ranked_list(ANN, asked.question.context.rows, BlendSpec())
    answer = Answer(Shared(found, np.zeros(4, np.float32)), np.empty(0, np.uint16), np.empty(0, np.float32))
    return Scored(answer, 0.0, 0.0)


def nothing_found(works: Sequence[Work]) -> list[Retrieved]:
    """A first stage that leaves all to the second."""
    return [Retrieved(answer_to(asked).answer.shared, True, 0.0) for asked in works]


class Scorer:
    """Scores on the compute thread while `doors` are open; `broken` is called with the rows of each batch first."""

    def __init__(self, broken: Callable[[list[int]], None] = lambda rows: None) -> None:
        self.batches: list[list[int]] = []
        self.entered = threading.Event()
        self.doors = threading.Event()
        self.doors.set()
        self._broken = broken

    def __call__(self, works: Sequence[Work], found: Sequence[Retrieved] = ()) -> Sequence[Scored]:
        rows = [int(asked.question.context.rows[0]) for asked in works]
        self.batches.append(rows)
        self.entered.set()
        assert self.doors.wait(20)
        self._broken(rows)
        return [answer_to(asked) for asked in works]

    @property
    def seen(self) -> set[int]:
        return {row for batch in self.batches for row in batch}


@dataclass
class Bench:
    """A running batcher, and everything that was observed of it."""

    batcher: Batcher
    scorer: Scorer
    gate: Gate
    clock: Callable[[], float]
    loaded: Loaded
    sizes: list[int] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)

    def ask(self, row: int, lasts_s: float = FAR, *, personal: bool = False) -> asyncio.Task[int]:
        """Submits a question, or a personal step of it; the task ends with the row that was answered."""
        work = Work(question(self.loaded, row))
        if personal:
            work = replace(work, person=Person(), answer=answer_to(work).answer)

        async def submit() -> int:
            permit = self.gate.try_acquire(Priority.INTERACTIVE, work.weight)
            assert permit is not None
            scored, waited_s = await self.batcher.submit(permit, work, self.clock() + lasts_s)
            assert waited_s >= 0
            return int(scored.answer.shared.candidates.rows[0])

        return asyncio.create_task(submit())

    async def plug(self) -> asyncio.Task[int]:
        """Keeps the compute thread busy with question -1 until the doors are opened."""
        self.scorer.doors.clear()
        self.scorer.entered.clear()
        task = self.ask(-1)
        assert await asyncio.to_thread(self.scorer.entered.wait, 10)
        return task

    async def settled(self) -> None:
        """Until what was started has reached the queue, or left it."""
        for _ in range(5):
            await asyncio.sleep(0)


@asynccontextmanager
async def bench(
    loaded: Loaded,
    scorer: Scorer | None = None,
    *,
    max_batch: int = 4,
    max_pairs: int = 1_000_000,
    retrieve: Callable[[Sequence[Work]], Sequence[Retrieved]] = nothing_found,
    max_queue: int = 1000,
    max_delay_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[Bench]:
    scorer = scorer or Scorer()
    sizes: list[int] = []
    drops: list[str] = []
    batcher = Batcher(
        Stages(retrieve, scorer),
        max_queue=max_queue,
        max_batch=max_batch,
        max_pairs=max_pairs,
        max_delay_s=max_delay_s,
        clock=clock,
        observe_batch=sizes.append,
        observe_drop=drops.append,
    )
    batcher.start()
    running = Bench(batcher, scorer, Gate(FixedLimit(10_000), 1), clock, loaded, sizes, drops)
    try:
        async with asyncio.timeout(20):
            yield running
    finally:
        scorer.doors.set()
        batcher.close()
    await running.settled()
    assert running.gate.in_flight == 0


async def ends(*tasks: asyncio.Task[int]) -> list[int | Reason | None]:
    """What each task ended with: the row answered, the reason, or None when it was cancelled."""
    out: list[int | Reason | None] = []
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        match result:
            case int():
                out.append(result)
            case NotScored():
                out.append(result.reason)
            case asyncio.CancelledError():
                out.append(None)
            case _:
                raise AssertionError(f"ended with {result!r}")
    return out
