"""Single flight: one computation for all who ask the same question at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from cache.tier import CacheError

T = TypeVar("T")


class FlightCancelled(CacheError):
    """The computation was cancelled from inside or by `close`, not by those who wait for it."""


@dataclass(slots=True)
class _Call(Generic[T]):
    task: asyncio.Task[T]
    waiters: int = 0


class Flight(Generic[T]):
    """Runs one computation per key at a time, in a task of its own, for everybody who asks meanwhile.

    Whoever is cancelled leaves alone, the first asker included; when nobody is left the computation is cancelled. The
    key is free as soon as the computation has ended or was given up: the next asker starts anew (a computation that
    was given up may still be unwinding then). One event loop only.
    """

    def __init__(self) -> None:
        self._calls: dict[bytes, _Call[T]] = {}
        self._tasks: set[asyncio.Task[T]] = set()
        self._closed = False

    async def do(self, key: bytes, compute: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """Return (value, joined): the value of `compute`, and whether somebody else had started it.

        Raises what the computation raised, to every waiter; `FlightCancelled` if it was cancelled from inside.
        """
        call = self._calls.get(key)
        joined = call is not None and not call.task.done()
        if call is None or not joined:
            call = self._start(key, compute)
        call.waiters += 1
        try:
            await asyncio.wait((call.task,))  # Unlike a plain await, leaves the task alone when this one is cancelled.
        finally:
            call.waiters -= 1
            if call.waiters == 0:
                self._free(key, call)
                call.task.cancel()  # Nothing happens to a task that is done.
        if call.task.cancelled():
            raise FlightCancelled("the computation was cancelled while others waited for it")
        return call.task.result(), joined

    async def close(self) -> None:
        """Cancel every computation and wait until it has unwound. Waiters get `FlightCancelled`."""
        self._closed = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._calls)

    def _start(self, key: bytes, compute: Callable[[], Awaitable[T]]) -> _Call[T]:
        if self._closed:
            raise FlightCancelled("closed")
        call = _Call(asyncio.create_task(_run(compute), name="flight"))
        self._calls[key] = call
        self._tasks.add(call.task)
        call.task.add_done_callback(lambda task: self._ended(key, call, task))
        return call

    def _ended(self, key: bytes, call: _Call[T], task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        self._free(key, call)
        if not task.cancelled():
            task.exception()  # Each waiter reads it too; this keeps the loop quiet when the last one has just left.

    def _free(self, key: bytes, call: _Call[T]) -> None:
        if self._calls.get(key) is call:
            del self._calls[key]


async def _run(compute: Callable[[], Awaitable[T]]) -> T:
    return await compute()
