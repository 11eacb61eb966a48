"""One snapshot in memory: everything that a request needs of it, behind one reference."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import structlog
from cachetools import LRUCache

from fallback.ladder import Reason
from fallback.popular import Popular
from indexer.contract import manifest as files
from indexer.contract.features import Context
from indexer.contract.items import ItemTable, Mask
from indexer.contract.manifest import Manifest
from indexer.contract.snapshot import Snapshot, SnapshotError
from services.feed.ranker import Ranker
from services.feed.retrieval import Retriever

log = structlog.get_logger()
NO_REGION = "\x00"
"""Stands for every region that the snapshot does not know; no request can spell it."""
_MASKS = 64
_GOLDEN_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class Loaded:
    """A snapshot that is being served. Without `retriever` or `ranker` it stands on a lower rung."""

    manifest: Manifest
    items: ItemTable
    popular: Popular
    retriever: Retriever | None
    ranker: Ranker | None
    previous: bool = False
    _masks: LRUCache[tuple[str, str], Mask] = field(default_factory=lambda: LRUCache(_MASKS))
    _masks_lock: threading.Lock = field(default_factory=threading.Lock)

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


def load(snapshot: Snapshot, *, exact_below: int, threads: int, previous: bool) -> Loaded:
    """Loads what is verified of a snapshot, and checks its golden queries.

    Raises SnapshotError when not even popularity can be served, or when the index answers other rows than it did
    when it was built.
    """
    spec = snapshot.manifest
    try:
        items = ItemTable.load(snapshot.path(files.ITEMS), snapshot.path(files.ID_INDEX))
        if items.count != spec.items:
            raise ValueError(f"{files.ITEMS}: {items.count} items, the manifest says {spec.items}")
        popular = Popular.load(snapshot.path(files.POPULAR), items.count)
        retriever = None
        if snapshot.has(files.INDEX) and snapshot.has(files.VECTORS):
            retriever = Retriever.load(
                snapshot.path(files.INDEX),
                snapshot.path(files.VECTORS),
                shape=(spec.items, spec.dimension),
                index_spec=spec.index,
                query=spec.query,
                exact_below=exact_below,
                threads=threads,
            )
        ranker = None
        if snapshot.has(files.RANKER):
            ranker = Ranker.load(snapshot.path(files.RANKER), spec.ranker, threads)
        loaded = Loaded(spec, items, popular, retriever, ranker, previous)
        check_golden(loaded)
        return loaded
    except SnapshotError:
        raise
    except Exception as error:  # FAISS, ONNX Runtime and Arrow each have kinds of their own
        raise SnapshotError(f"snapshot {snapshot.id} refused: {type(error).__name__}: {error}") from error


def check_golden(loaded: Loaded) -> None:
    """Asks the builder's golden queries, which also warms the index up. Raises SnapshotError on another answer."""
    if loaded.retriever is None:
        return
    everything = np.ones(loaded.items.count, np.bool_)
    for at, golden in enumerate(loaded.manifest.golden):
        context = Context(np.array(golden.rows, np.int32), np.full(len(golden.rows), 2, np.uint8))
        ((_, scores),) = loaded.retriever.retrieve([context], everything)
        want = np.array(golden.top_scores, np.float32)
        if len(scores) < len(want) or not np.allclose(scores[: len(want)], want, atol=_GOLDEN_TOLERANCE):
            raise SnapshotError(
                f"snapshot {loaded.id} refused: golden query {at} is answered otherwise than when it was built"
            )
