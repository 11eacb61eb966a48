"""The snapshot that is served: found and verified at start, swapped when a new one is published."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import structlog

from indexer.contract.snapshot import SnapshotError, current_id, lineage, open_snapshot, snapshot_ids
from services.feed.loaded import Loaded
from services.feed.loading import Loader
from services.metrics import Metrics

log = structlog.get_logger()


class Live:
    """Holds one reference, swapped whole: a request sees one snapshot from beginning to end."""

    def __init__(self, root: Path, loader: Loader, metrics: Metrics) -> None:
        self._root = root
        self._loader = loader
        self._metrics = metrics
        self._loaded: Loaded | None = None
        self._refused: str | None = None

    def current(self) -> Loaded | None:
        """The snapshot to answer from; None when there is none."""
        return self._loaded

    def load_at_start(self) -> None:
        """CURRENT, else its nearest whole ancestor, else what can be trusted of the newest of them, else nothing."""
        line = self._candidates()
        for name in line:
            loaded = self._try(name, whole=True, previous=name != line[0])
            if loaded is not None:
                self._swap(loaded)
                return
        for name in line:
            loaded = self._try(name, whole=False, previous=name != line[0])
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
            except Exception:
                # Whatever it was: the next snapshot must be found all the same.
                self._metrics.snapshot_refused.inc()
                log.exception("looking for a new snapshot failed")

    def refresh(self) -> None:
        """Loads, verifies, warms and swaps in CURRENT when it is another than the one served and not refused before."""
        try:
            name = current_id(self._root)
        except SnapshotError as error:
            log.error("CURRENT cannot be read", error=str(error))
            return
        served = self._loaded
        if served is not None and served.id == name:
            self._mark(served, previous=False)
            return
        if name is None:
            return
        if name != self._refused:
            loaded = self._try(name, whole=True, previous=False)
            if loaded is not None:
                self._swap(loaded)
                return
            self._refused = name
        if served is not None:
            self._mark(served, previous=True)

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

    def _try(self, name: str, *, whole: bool, previous: bool) -> Loaded | None:
        try:
            return self._loader.load(open_snapshot(self._root / name), whole=whole, previous=previous)
        except SnapshotError as error:
            self._metrics.snapshot_refused.inc()
            log.error("snapshot refused", snapshot=name, reason=str(error), whole=whole)
            return None

    def _mark(self, served: Loaded, *, previous: bool) -> None:
        """Makes the pages say, or no longer say, that CURRENT is another snapshot than theirs."""
        if served.previous != previous:
            self._swap(replace(served, previous=previous))

    def _swap(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._metrics.snapshot.clear()
        self._metrics.snapshot.labels(loaded.id, loaded.ranker_id).set(1)
        log.info("serving snapshot", snapshot=loaded.id, items=loaded.items.count, reasons=list(loaded.reasons))
