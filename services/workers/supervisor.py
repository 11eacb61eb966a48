"""Starts the workers, watches them, replaces those that die, and ends them all."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

import structlog

from services.errors import StartError
from services.metrics import ParentMetrics
from services.workers.orders import Orders
from services.workers.worker import READY

log = structlog.get_logger()
_COMMAND = (sys.executable, "-m", "services.workers.worker")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0
_SETTLED_S = 60.0
"""One that lived for so long and then dies is replaced as if it were the first."""


class Workers:
    """One process for each of `orders`. `end_s`: how long one may take to drain before it is killed."""

    def __init__(self, orders: Sequence[Orders], metrics: ParentMetrics, *, end_s: float) -> None:
        self._orders = orders
        self._metrics = metrics
        self._end_s = end_s
        self._processes: dict[int, Process] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._running: set[int] = set()
        metrics.workers.set_function(lambda: len(self._running))

    @property
    def pids(self) -> dict[int, int]:
        """The process of each worker that listens, by the worker's number."""
        return {number: self._processes[number].pid for number in sorted(self._running)}

    async def start(self) -> None:
        """Returns when all listen. Raises StartError when one ends before that; the others are ended then."""
        numbers = range(len(self._orders))
        try:
            await asyncio.gather(*(self._begin(number) for number in numbers))
        except BaseException:
            await self.stop()
            raise
        self._keepers = [asyncio.create_task(self._keep(number), name=f"worker-{number}") for number in numbers]

    async def stop(self) -> None:
        """Tells all to drain, at once, and waits for them."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await asyncio.gather(*(self._end(process) for process in self._processes.values()))
        self._running.clear()

    async def _keep(self, number: int) -> None:
        """Replaces the worker for ever, after a pause that doubles while it keeps dying young."""
        loop, pause_s = asyncio.get_running_loop(), _FIRST_PAUSE_S
        while True:
            begun = loop.time()
            if number in self._running:
                status = await self._processes[number].wait()
                self._running.discard(number)
                self._metrics.exits.inc()
                log.error("a worker died", worker=number, status=status, replaced_in_s=pause_s)
            if loop.time() - begun > _SETTLED_S:
                pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                await self._begin(number)
            except (StartError, OSError) as error:
                log.error("a worker cannot be replaced", worker=number, reason=str(error), again_in_s=pause_s)

    async def _begin(self, number: int) -> None:
        """Starts a worker and waits until it listens. A process of its own from the beginning: nothing is forked."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FEEDLINE_")}
        process = self._processes[number] = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=PIPE,
            stdout=PIPE,
            env={"OMP_WAIT_POLICY": "PASSIVE", **kept},
            start_new_session=True,  # Ctrl-C is for the parent, which drains them.
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._orders[number].model_dump_json().encode() + b"\n")
        while (line := await process.stdout.readline()) != f"{READY}\n".encode():
            if not line:
                raise StartError(f"worker {number} ended with status {await process.wait()} before it was ready")
        self._running.add(number)
        log.info("worker ready", worker=number, pid=process.pid)

    async def _end(self, process: Process) -> None:
        if process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(self._end_s):
                await process.wait()
        except TimeoutError:
            log.error("a worker did not drain", pid=process.pid, waited_s=self._end_s)
            process.kill()
            await process.wait()
