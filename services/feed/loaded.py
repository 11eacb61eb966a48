"""One snapshot in memory: everything that a request needs of it, behind one reference."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
from cachetools import LRUCache

from fallback.ladder import Reason
from fallback.popular import Popular
from indexer.contract.features import Floats
from indexer.contract.items import ItemTable, Mask, Rows
from indexer.contract.manifest import Manifest
from services.feed.ranker import Ranker
from services.feed.retrieval import Retriever

NO_REGION = "\x00"
"""Stands for every region that the snapshot does not know; no request can spell it."""
_FILTERS = 64
_DEEPEST = 2500
"""Items over all pages of one feed (2,000 at most), and those that a request excludes (500 at most)."""

Listed = tuple[Rows, Floats]
"""Rows int32 [m] and scores float32 [m], best first."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A snapshot that is being served. Without `retriever` or `ranker` it stands on a lower rung."""

    manifest: Manifest
    items: ItemTable
    popular: Popular
    retriever: Retriever | None
    ranker: Ranker | None
    previous: bool = False
    _masks: LRUCache[tuple[str, str], Mask] = field(default_factory=lambda: LRUCache(_FILTERS))
    _masks_lock: threading.Lock = field(default_factory=threading.Lock)
    _tails: LRUCache[tuple[str, str], Listed] = field(default_factory=lambda: LRUCache(_FILTERS))

    @property
    def id(self) -> str:
        """The snapshot's id."""
        return self.manifest.id

    @property
    def ranker_id(self) -> str:
        """The ranker's id; empty when there is none."""
        return self.ranker.spec.id if self.ranker else ""

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What every page of this snapshot has to say of it."""
        lacks = [Reason.NO_INDEX] if self.retriever is None else [Reason.NO_RANKER] if self.ranker is None else []
        return (*([Reason.PREVIOUS_SNAPSHOT] if self.previous else []), *lacks)

    def knows_region(self, region: str) -> bool:
        """Whether an item or a popularity list belongs to the region."""
        return region in self.items.regions or region in self.popular.regions

    def eligible(self, category: str, region: str) -> Mask:
        """bool [n]: which items may be shown in this category and region ("": any). Kept for the last 64 pairs.

        A region of no item allows the items that have no region of their own. Safe to call from any thread.
        """
        if region not in self.items.regions:
            region = NO_REGION if region and self.items.regions else ""
        with self._masks_lock:
            mask = self._masks.get((category, region))
            if mask is None:
                mask = self.items.eligible(self.items.category_code(category) if category else None, region)
                mask.setflags(write=False)
                self._masks[category, region] = mask
        return mask

    def tail(self, category: str, region: str) -> Listed:
        """The most popular of all items that may be shown here, at most 2,500: what follows when the lists have ended.

        Made when first needed, kept for the last 64 pairs. To be called from one thread.
        """
        tail = self._tails.get((category, region))
        if tail is None:
            rows = np.flatnonzero(self.eligible(category, region)).astype(np.int32)
            if len(rows) > _DEEPEST:
                rows = np.sort(rows[np.argpartition(-self.items.popularity[rows], _DEEPEST)[:_DEEPEST]])
            rows = rows[np.argsort(-self.items.popularity[rows], kind="stable")]
            tail = self._tails[category, region] = (rows, self.items.popularity[rows])
        return tail
