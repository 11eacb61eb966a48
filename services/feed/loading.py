"""From a verified folder to a snapshot in memory: loaded, asked its golden queries, warmed up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import structlog

from fallback.popular import Popular
from indexer.contract import manifest as files
from indexer.contract.features import Context
from indexer.contract.items import ItemTable
from indexer.contract.manifest import Manifest
from indexer.contract.snapshot import Snapshot, SnapshotError
from services.errors import NotScored
from services.feed.loaded import Loaded
from services.feed.question import Question
from services.feed.ranker import Ranker
from services.feed.rerank import score
from services.feed.retrieval import Retriever

log = structlog.get_logger()
_GOLDEN_TOLERANCE = 1e-3
_VIEW = 2
_WARM_BATCHES = (1, 8)
_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads snapshots. Filters that leave fewer than `exact_below` items are scanned exactly."""

    exact_below: int
    threads: int

    def load(self, snapshot: Snapshot, *, whole: bool, previous: bool = False) -> Loaded:
        """The snapshot, ready to be served.

        `whole`: everything must load and answer as when it was built. Otherwise an index or a ranker that is damaged,
        or that does not load on this machine, is left out, and the snapshot stands on a lower rung.

        Raises SnapshotError when that cannot be.
        """
        with _refusing(snapshot):
            if whole:
                snapshot.require_whole()
            items = ItemTable.load(snapshot.path(files.ITEMS), snapshot.path(files.ID_INDEX))
            if items.count != snapshot.manifest.items:
                raise ValueError(f"{files.ITEMS}: {items.count} items, the manifest says {snapshot.manifest.items}")
            popular = Popular.load(snapshot.path(files.POPULAR), items.count)
            retriever = _part(snapshot, self._retriever, whole=whole)
            ranker = _part(snapshot, self._ranker, whole=whole)
            return _warmed(Loaded(snapshot.manifest, items, popular, retriever, ranker, previous), whole=whole)

    def _retriever(self, snapshot: Snapshot) -> Retriever:
        spec = snapshot.manifest
        retriever = Retriever.load(
            snapshot.path(files.INDEX),
            snapshot.path(files.VECTORS),
            shape=(spec.items, spec.dimension),
            index_spec=spec.index,
            query=spec.query,
            exact_below=self.exact_below,
            threads=self.threads,
        )
        _check_golden(retriever, spec)
        return retriever

    def _ranker(self, snapshot: Snapshot) -> Ranker:
        return Ranker.load(snapshot.path(files.RANKER), snapshot.manifest.ranker, self.threads)


@contextmanager
def _refusing(snapshot: Snapshot) -> Iterator[None]:
    """Makes a SnapshotError of whatever FAISS, ONNX Runtime and Arrow raise: each has kinds of its own."""
    try:
        yield
    except SnapshotError:
        raise
    except Exception as error:
        raise SnapshotError(f"snapshot {snapshot.id} refused: {type(error).__name__}: {error}") from error


def _part(snapshot: Snapshot, load: Callable[[Snapshot], _Part], *, whole: bool) -> _Part | None:
    try:
        with _refusing(snapshot):
            return load(snapshot)
    except SnapshotError as error:
        if whole:
            raise
        log.error("a snapshot is served without a part", reason=str(error))
        return None


def _check_golden(retriever: Retriever, spec: Manifest) -> None:
    """Asks the builder's golden queries. Raises ValueError when one is answered with other scores."""
    everything = np.ones(spec.items, np.bool_)
    for at, golden in enumerate(spec.golden):
        context = Context(np.array(golden.rows, np.int32), np.full(len(golden.rows), _VIEW, np.uint8))
        ((_, scores),) = retriever.retrieve([context], everything)
        want = np.array(golden.top_scores, np.float32)
        if len(scores) < len(want) or not np.allclose(scores[: len(want)], want, atol=_GOLDEN_TOLERANCE):
            raise ValueError(f"golden query {at} is answered otherwise than when it was built")


def _warmed(loaded: Loaded, *, whole: bool) -> Loaded:
    """Scores small and full batches once, so that the first shopper does not pay for first uses."""
    if loaded.retriever is None:
        return loaded
    spread = np.linspace(0, loaded.items.count - 1, num=max(_WARM_BATCHES), dtype=np.int32)
    view = np.array([_VIEW], np.uint8)
    questions = [Question(loaded, "", "", "", "", Context(spread[at : at + 1], view)) for at in range(len(spread))]
    try:
        for size in _WARM_BATCHES:
            score(questions[:size])
    except NotScored:
        if whole:
            raise
        return replace(loaded, retriever=None)
    return loaded
