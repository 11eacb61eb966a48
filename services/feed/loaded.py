"""One snapshot in memory: everything that a request needs of it, behind one reference."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from cachetools import LRUCache

from fallback.ladder import Reason
from fallback.popular import Popular
from indexer.contract.candidates import Shelf
from indexer.contract.features import Floats
from indexer.contract.items import ItemTable, Mask, Rows
from indexer.contract.manifest import Manifest
from services.feed.cascade import Cascade
from services.feed.ranker import Ranker
from services.feed.retrieval import Retriever
from services.feed.session_vectors import Encode

NO_REGION = "\x00"
"""Stands for every region that the snapshot does not know; no request can spell it."""
_FILTERS = 64
_DEEPEST = 2500
"""Items over all pages of one feed (2,000 at most), and those that a request excludes (500 at most)."""

Listed = tuple[Rows, Floats]
"""Rows int32 [m] and scores float32 [m], best first."""


@dataclass(frozen=True, eq=False, repr=False)
class Loaded:
    """A snapshot that is being served. What it lacks lowers the rung, or the quality of what stands on it.

    shelf      vectors and neighbours; without it nothing but popularity is left. Its lists are of no neighbours where
               `near` is False: the files could not be trusted.
    encode     without it there are no session vectors, and hence no vector retrieval
    retriever  without it there is no vector retrieval: neighbours, history and popularity are reranked
    ranker     without it the order is that of the blend
    cascade    a stronger ranker for what is doubtful, where the settings want one and the snapshot has one
    """

    manifest: Manifest
    items: ItemTable
    popular: Popular
    shelf: Shelf | None
    encode: Encode | None
    retriever: Retriever | None
    ranker: Ranker | None
    near: bool = True
    previous: bool = False
    cascade: Cascade | None = None
    _masks: LRUCache[tuple[str, str], Mask] = field(default_factory=lambda: LRUCache(_FILTERS))
    _masks_lock: threading.Lock = field(default_factory=threading.Lock)
    _tails: LRUCache[tuple[str, str], Listed] = field(default_factory=lambda: LRUCache(_FILTERS))

    def __repr__(self) -> str:
        """Short: it stands in tracebacks, and millions of items take seconds to print."""
        return f"Loaded({self.id})"

    @property
    def id(self) -> str:
        """The snapshot's id."""
        return self.manifest.id

    @property
    def ranker_id(self) -> str:
        """The ranker's id, whichever questions the strong one of the cascade scored, too; empty when there is none."""
        return self.ranker.spec.id if self.ranker else ""

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """What every page of this snapshot has to say of it."""
        said = {
            Reason.PREVIOUS_SNAPSHOT: self.previous,
            Reason.NO_INDEX: not self.searches,
            Reason.NO_NEIGHBOURS: self.shelf is not None and not self.near,
            Reason.NO_RANKER: self.shelf is not None and self.ranker is None,
        }
        return tuple(reason for reason, so in said.items() if so)

    @property
    def searches(self) -> bool:
        """Whether there is vector retrieval."""
        return self.shelf is not None and self.encode is not None and self.retriever is not None

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

    def popular_rows(self, category: str, region: str, count: int) -> Rows:
        """The `count` most popular items that may be shown here, int32, of the lists in the order of the ladder."""
        allowed = self.eligible(category, region)
        lists = (rows[allowed[rows]] for _, rows, _ in self.popular.ladder(region, category))
        distinct = dict.fromkeys(row for rows in lists for row in rows.tolist())
        return np.array(list(islice(distinct, count)), np.int32)

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
