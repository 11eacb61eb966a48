"""One snapshot in memory: everything that a request needs of it, behind one reference."""

from __future__ import annotations

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
from services.feed.filters import Filter, Filters
from services.feed.gpu_retrieval import GpuRetriever
from services.feed.ranker import Ranker
from services.feed.retrieval import Retriever
from services.feed.session_vectors import Encode

_TAILS = 64

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
    filters: Filters
    popular: Popular
    shelf: Shelf | None
    encode: Encode | None
    retriever: Retriever | GpuRetriever | None
    ranker: Ranker | None
    near: bool = True
    previous: bool = False
    cascade: Cascade | None = None
    _tails: LRUCache[tuple[str, str], Listed] = field(default_factory=lambda: LRUCache(_TAILS))

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

    def allowed(self, category: str, region: str) -> Filter:
        """Which of some rows may be shown in this category and region ("": any): `allowed(...)[rows]`.

        A region of no item allows the items that have no region of their own. Safe to call from any thread.
        """
        return self.filters.rows(category, region)

    def eligible(self, category: str, region: str) -> Mask:
        """bool [n]: the same of all items. For the compute thread: it looks at every item when it is not kept."""
        return self.filters.mask(category, region)

    def among(self, category: str, region: str) -> Mask | Rows:
        """The same as a mask bool [n], or as rows int32 where a category has few items: what costs less to make."""
        return self.filters.among(category, region)

    def popular_rows(self, category: str, region: str, count: int) -> Rows:
        """The `count` most popular items that may be shown here, int32, of the lists in the order of the ladder."""
        allowed = self.allowed(category, region)
        lists = (rows[allowed[rows]] for _, rows, _ in self.popular.ladder(region, category))
        distinct = dict.fromkeys(row for rows in lists for row in rows.tolist())
        return np.array(list(islice(distinct, count)), np.int32)

    def tail(self, category: str, region: str) -> Listed:
        """The most popular of all items that may be shown here, at most 2,500: what follows when the lists have ended.

        Made when first needed, kept for the last 64 pairs. To be called from one thread.
        """
        tail = self._tails.get((category, region))
        if tail is None:
            rows = self.filters.most_popular(category, region)
            tail = self._tails[category, region] = (rows, self.items.popularity[rows])
        return tail
