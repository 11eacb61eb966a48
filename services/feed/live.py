"""The snapshot that is served: found and verified at start, swapped when a new one is published."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import structlog

from indexer.contract.snapshot import (
    Snapshot,
    SnapshotError,
    SnapshotUnavailable,
    current_id,
    lineage,
    open_snapshot,
    read_manifest,
    snapshot_ids,
)
from services.deadline import Clock
from services.feed.loaded import Loaded
from services.feed.loading import Loader
from services.feed.memory import NoRoom, available_bytes, require_room
from services.feed.quiet import quietly
from services.metrics import Metrics

log = structlog.get_logger()
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 300.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A snapshot that CURRENT names and that is not served, and why. `retry_at`, on the monotonic clock: when it is
    tried again, after `pause_s`; infinite for what does not pass."""

    snapshot_id: str
    reason: str
    pause_s: float
    retry_at: float


class Live:
    """Holds one reference, swapped whole: a request sees one snapshot from beginning to end.

    `available`: bytes of memory that may still be taken, None: unknown. `drain_s`: seconds that whoever asked the old
    snapshot may go on with it after a swap; then it is freed. `turn`: entered while a new one is loaded, so that
    processes of one machine do so one after the other.
    """

    def __init__(
        self,
        root: Path,
        loader: Loader,
        metrics: Metrics,
        *,
        available: Callable[[], int | None] = available_bytes,
        drain_s: float = 5.0,
        clock: Clock = time.monotonic,
        turn: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._root = root
        self._loader = loader
        self._metrics = metrics
        self._available = available
        self._drain_s = drain_s
        self._clock = clock
        self._turn = turn
        self._loaded: Loaded | None = None
        self._refusal: Refusal | None = None
        self._retired: list[Loaded] = []

    def current(self) -> Loaded | None:
        """The snapshot to answer from; None when there is none."""
        return self._loaded

    @property
    def refusal(self) -> Refusal | None:
        """Why CURRENT is not served, when it is not."""
        return self._refusal

    def load_at_start(self) -> None:
        """CURRENT, else its nearest whole ancestor, else what can be trusted of the newest of them, else nothing."""
        line = self._candidates()
        for whole in (True, False):
            for name in line:
                loaded = self._at_start(name, whole=whole, previous=name != line[0])
                if loaded is not None:
                    self._swap(loaded)
                    return
        log.error("no snapshot can be served", folder=str(self._root))

    async def watch(self, every_s: float) -> None:
        """Looks for a new CURRENT for ever; one that is refused leaves the old one serving."""
        while True:
            await asyncio.sleep(every_s)
            try:
                await asyncio.to_thread(self.refresh)
                if self._retired:
                    await asyncio.sleep(self._drain_s)
                    await asyncio.to_thread(self.free)
            except Exception:
                # Whatever it was: the next snapshot must be found all the same.
                self._metrics.snapshot_refused.labels("internal").inc()
                log.exception("looking for a new snapshot failed")

    def refresh(self) -> None:
        """Loads, verifies, warms and swaps in CURRENT when it is another than the one served and not refused before.

        What was refused for a reason that may pass is tried again, after pauses that double up to five minutes.
        """
        try:
            name = current_id(self._root)
        except SnapshotError as error:
            log.error("CURRENT cannot be read", error=str(error))
            return
        served = self._loaded
        if name is None or (served is not None and served.id == name):
            self._follow(name)
            return
        if self._refusal is None or self._refusal.snapshot_id != name or self._clock() >= self._refusal.retry_at:
            loaded = self._beside_the_served(name)
            if loaded is not None:
                self._swap(loaded)
                return
        self._follow(name)

    def free(self) -> None:
        """Lets go of the snapshots that were swapped out, on the calling thread: unmapping gigabytes takes a while."""
        retired = [loaded.id for loaded in self._retired]
        self._retired.clear()
        pa.default_memory_pool().release_unused()
        log.info("freed snapshots", snapshots=retired)

    def _candidates(self) -> list[str]:
        try:
            name = current_id(self._root)
        except SnapshotError as error:
            log.error("CURRENT cannot be read: the newest snapshot takes its place", error=str(error))
            name = None
        kept = snapshot_ids(self._root)
        if name is None:
            name = kept[-1] if kept else None
        return [] if name is None else lineage(self._root, name)

    def _at_start(self, name: str, *, whole: bool, previous: bool) -> Loaded | None:
        """Nobody is served yet: as quick as may be, and memory is not asked for."""
        try:
            return self._loader.load(open_snapshot(self._root / name), whole=whole, previous=previous)
        except SnapshotError as error:
            if whole and not previous:
                self._refuse(name, error)
            else:
                self._count(error)
            log.error("snapshot refused", snapshot=name, reason=str(error), whole=whole)
            return None

    def _beside_the_served(self, name: str) -> Loaded | None:
        """The new snapshot, read and verified without getting in the way of those who are served; None: refused."""
        folder = self._root / name
        try:
            with self._turn():
                require_room(read_manifest(folder), self._available())
                snapshot: Snapshot = quietly(lambda: open_snapshot(folder))
                return replace(self._loader, run=quietly).load(snapshot, whole=True)
        except SnapshotError as error:
            self._refuse(name, error)
            log.error("snapshot refused", snapshot=name, reason=str(error), whole=True)
            return None

    def _refuse(self, name: str, error: SnapshotError) -> None:
        self._count(error)
        before = self._refusal
        again = before is not None and before.snapshot_id == name
        pause_s = min(2 * before.pause_s, _LONGEST_PAUSE_S) if again and before else _FIRST_PAUSE_S
        passes = isinstance(error, SnapshotUnavailable)
        self._refusal = Refusal(name, str(error), pause_s, self._clock() + pause_s if passes else math.inf)

    def _count(self, error: SnapshotError) -> None:
        why = "memory" if isinstance(error, NoRoom) else "damaged"
        if isinstance(error, SnapshotUnavailable) and why != "memory":
            why = "unavailable"
        self._metrics.snapshot_refused.labels(why).inc()

    def _follow(self, name: str | None) -> None:
        """Makes the pages say, or no longer say, that CURRENT is another snapshot than theirs."""
        served = self._loaded
        if name is None or served is None:
            return
        previous = served.id != name
        if served.previous != previous:
            self._swap(replace(served, previous=previous))

    def _swap(self, loaded: Loaded) -> None:
        old, self._loaded = self._loaded, loaded
        if old is not None and old.id != loaded.id:
            self._retired.append(old)
        if not loaded.previous:
            self._refusal = None
        self._metrics.snapshot.clear()
        self._metrics.snapshot.labels(loaded.id, loaded.ranker_id).set(1)
        self._metrics.snapshot_behind.set(loaded.previous)
        log.info("serving snapshot", snapshot=loaded.id, items=loaded.items.count, reasons=list(loaded.reasons))
