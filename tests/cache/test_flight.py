from __future__ import annotations

import asyncio
import random

import pytest

from cache.flight import Flight, FlightCancelled

KEY = b"key"


class Computation:
    """A computation that a test ends, and that knows how often it was begun and cancelled."""

    def __init__(self) -> None:
        self.begun = 0
        self.cancelled = 0
        self.end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def __call__(self) -> bytes:
        self.begun += 1
        try:
            return await asyncio.shield(self.end)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def asked(flight: Flight[bytes], compute: Computation, count: int) -> list[asyncio.Task[tuple[bytes, bool]]]:
    tasks = [asyncio.create_task(flight.do(KEY, compute)) for _ in range(count)]
    await settle()
    return tasks


async def test_one_computation_answers_all_who_ask() -> None:
    flight: Flight[bytes] = Flight()
    compute = Computation()
    tasks = await asked(flight, compute, 100)

    compute.end.set_result(b"v")

    assert await asyncio.gather(*tasks) == [(b"v", False)] + [(b"v", True)] * 99
    assert compute.begun == 1
    await settle()
    assert len(flight) == 0


async def test_keys_do_not_wait_for_each_other() -> None:
    flight: Flight[bytes] = Flight()
    slow = Computation()
    waiting = await asked(flight, slow, 1)

    async def quick() -> bytes:
        return b"quick"

    assert await flight.do(b"other", quick) == (b"quick", False)
    slow.end.set_result(b"slow")
    assert await waiting[0] == (b"slow", False)


@pytest.mark.parametrize("leaving", [[0], [1], [0, 1], [3], [0, 1, 3]])
async def test_who_is_cancelled_leaves_alone(leaving: list[int]) -> None:
    flight: Flight[bytes] = Flight()
    compute = Computation()
    tasks = await asked(flight, compute, 4)

    for position in leaving:
        tasks[position].cancel()
    await settle()
    compute.end.set_result(b"v")
    results = await asyncio.gather(*tasks, return_exceptions=True)

    for position, result in enumerate(results):
        if position in leaving:
            assert isinstance(result, asyncio.CancelledError)
        else:
            assert isinstance(result, tuple)
            assert result[0] == b"v"
    assert (compute.begun, compute.cancelled) == (1, 0)


async def test_when_nobody_is_left_the_computation_ends_and_the_key_is_free() -> None:
    flight: Flight[bytes] = Flight()
    compute = Computation()
    for task in await asked(flight, compute, 3):
        task.cancel()
    await settle()
    assert compute.cancelled == 1
    assert len(flight) == 0

    again = await asked(flight, compute, 1)
    compute.end.set_result(b"v")

    assert await again[0] == (b"v", False)


async def test_an_error_reaches_all_and_frees_the_key() -> None:
    flight: Flight[bytes] = Flight()
    compute = Computation()
    tasks = await asked(flight, compute, 3)

    compute.end.set_exception(RuntimeError("broken"))
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert [str(result) for result in results] == ["broken"] * 3
    compute.end = asyncio.get_running_loop().create_future()
    compute.end.set_result(b"v")
    assert await flight.do(KEY, compute) == (b"v", False)


async def test_a_computation_that_cancels_itself_is_an_error_not_a_cancellation() -> None:
    flight: Flight[bytes] = Flight()

    async def cancels_itself() -> bytes:
        raise asyncio.CancelledError

    with pytest.raises(FlightCancelled):
        await flight.do(KEY, cancels_itself)
    assert len(flight) == 0


async def test_a_deadline_of_one_waiter_is_its_own() -> None:
    flight: Flight[bytes] = Flight()
    compute = Computation()
    patient = await asked(flight, compute, 1)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await flight.do(KEY, compute)

    compute.end.set_result(b"v")
    assert await patient[0] == (b"v", False)


async def test_close_cancels_the_computation_and_tells_who_waits() -> None:
    flight: Flight[bytes] = Flight()
    compute = Computation()
    tasks = await asked(flight, compute, 2)

    await flight.close()

    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [FlightCancelled] * 2
    with pytest.raises(FlightCancelled):
        await flight.do(KEY, compute)


async def test_a_storm_of_cancels_leaves_survivors_answered_and_every_key_free() -> None:
    rng = random.Random(11)
    flight: Flight[bytes] = Flight()

    async def compute_for(key: bytes) -> bytes:
        for _ in range(rng.randrange(4)):
            await asyncio.sleep(0)
        if rng.random() < 0.1:
            raise RuntimeError("broken")
        return key

    async def ask(key: bytes) -> bytes:
        return (await flight.do(key, lambda: compute_for(key)))[0]

    for _ in range(100):
        asked_for = [bytes([rng.randrange(5)]) for _ in range(30)]
        tasks = [asyncio.create_task(ask(key)) for key in asked_for]
        gone = set()
        for position in rng.sample(range(30), 15):
            await asyncio.sleep(0)
            if tasks[position].cancel():
                gone.add(position)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for position, (key, result) in enumerate(zip(asked_for, results, strict=True)):
            left = position in gone and isinstance(result, asyncio.CancelledError)
            assert left or result == key or str(result) == "broken"
    await settle()
    assert len(flight) == 0
    await flight.close()
