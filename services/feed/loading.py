"""From a verified folder to a snapshot in memory: loaded, asked its golden queries, warmed up."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import structlog

from fallback.ladder import Reason
from fallback.popular import Popular
from indexer.contract import manifest as files
from indexer.contract.candidates import Shelf
from indexer.contract.features import Context
from indexer.contract.history import History
from indexer.contract.items import ItemTable
from indexer.contract.lists import RowLists
from indexer.contract.manifest import Manifest
from indexer.contract.neighbours import neighbour_lists
from indexer.contract.snapshot import Snapshot, SnapshotError, SnapshotUnavailable
from indexer.contract.sources import CANDIDATES, NOTHING
from indexer.contract.towers import tower_context
from indexer.contract.vector_file import map_vectors
from services.errors import NotScored
from services.feed.cascade import Cascade, Observe
from services.feed.filters import Filters
from services.feed.gpu_retrieval import GpuRetriever, OnGpu
from services.feed.loaded import Loaded
from services.feed.question import Question
from services.feed.quiet import at_once
from services.feed.ranker import Ranker
from services.feed.rerank import Scored, score, shortfalls
from services.feed.retrieval import Retriever
from services.feed.session_vectors import Encode, by_mean, by_tower
from services.feed.work import Person, Work

log = structlog.get_logger()
_GOLDEN_TOLERANCE = 1e-3
_OF_CODES = 1e-2
"""What the scores of an index of 8-bit codes may be off, as a share of the best score."""
_VIEW = 2
_WARM_BATCHES = (1, 8)
_BLOCK = 1 << 22
"""Numbers of a file that are looked at together."""
_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_Vectors = npt.NDArray[np.float16]
_Near = tuple[RowLists, RowLists]


class Run(Protocol):
    """Makes a call and gives what it gives."""

    def __call__(self, call: Callable[[], _Result], /) -> _Result:
        """See `quiet`."""
        ...


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads snapshots. Filters that leave fewer than `exact_below` items are scanned exactly.

    `cascade`: share of the questions that a strong ranker scores, too, where a snapshot has one; 0: none. `on_gpu`:
    how vectors are searched on a device; None: on the CPU. `cuda`: number of the device that models run on; None: CPU.
    `run`: makes the calls that read much and leave nothing running, see `quietly`; models have threads of their own,
    and are opened by the calling thread.
    """

    exact_below: int
    threads: int
    cascade: float = 0.0
    observe_strong: Observe = lambda how, count: None
    on_gpu: OnGpu | None = None
    cuda: int | None = None
    run: Run = at_once

    def load(self, snapshot: Snapshot, *, whole: bool, previous: bool = False) -> Loaded:
        """The snapshot, ready to be served.

        `whole`: everything must load and answer as when it was built. Otherwise what is damaged, or does not load on
        this machine, is left out: index, session tower, neighbours, ranker, or the vectors and with them all of these;
        the snapshot stands on a lower rung.

        Raises SnapshotError when that cannot be.
        """
        with _refusing(snapshot):
            if whole:
                snapshot.require_whole()
            spec = snapshot.manifest
            items, filters, popular = self.run(partial(_tables, snapshot))
            vectors = _part(snapshot, _vectors, whole=whole)
            if vectors is None:
                return Loaded(spec, items, filters, popular, None, None, None, None, previous=previous)
            near = self.run(partial(_part, snapshot, _neighbours, whole=whole))
            shelf = Shelf.of(items, vectors, *(near or _no_neighbours(items.count)), spec.sources)
            encode = _part(snapshot, partial(self._encode, vectors=vectors), whole=whole)
            retriever = _part(snapshot, partial(self._retriever, vectors=vectors, encode=encode), whole=whole)
            ranker = _part(snapshot, self._ranker, whole=whole)
            cascade = _part(snapshot, self._cascade, whole=whole)
            parts = shelf, encode, retriever, ranker
            loaded = Loaded(spec, items, filters, popular, *parts, near is not None, previous, cascade)
            return _warmed(loaded, whole=whole)

    def _encode(self, snapshot: Snapshot, *, vectors: _Vectors) -> Encode:
        spec = snapshot.manifest.query
        if spec.kind == "session_tower":
            return by_tower(snapshot.path(files.SESSION_TOWER), vectors, self.threads, self.cuda)
        return by_mean(vectors, spec)

    def _retriever(self, snapshot: Snapshot, *, vectors: _Vectors, encode: Encode | None) -> Retriever | GpuRetriever:
        spec, file = snapshot.manifest.index, snapshot.path(files.INDEX)
        retriever: Retriever | GpuRetriever
        if self.on_gpu is not None:
            retriever = self.on_gpu.retriever(file, vectors, spec)
        else:
            retriever = Retriever.load(
                file, vectors, index_spec=spec, exact_below=self.exact_below, threads=self.threads
            )
        if encode is not None:
            _check_golden(encode, retriever, snapshot.manifest)
        return retriever

    def _ranker(self, snapshot: Snapshot) -> Ranker:
        return Ranker.load(snapshot.path(files.RANKER), snapshot.manifest.ranker, self.threads, self.cuda)

    def _cascade(self, snapshot: Snapshot) -> Cascade | None:
        spec = snapshot.manifest
        if not self.cascade or spec.strong_ranker is None or spec.cascade is None:
            return None
        alike, has = ((each.depth, each.places) for each in (spec.ranker, spec.strong_ranker))
        if has != alike:
            raise ValueError(f"strong_ranker: depth and places {has}, expected those of the ranker, {alike}")
        strong = Ranker.load(snapshot.path(files.STRONG_RANKER), spec.strong_ranker, self.threads, self.cuda)
        return Cascade.of(strong, spec.cascade, self.cascade, self.observe_strong)


@contextmanager
def _refusing(snapshot: Snapshot) -> Iterator[None]:
    """Makes a SnapshotError of whatever FAISS, ONNX Runtime and Arrow raise: each has kinds of its own. What a disk or
    the memory refuses may pass: SnapshotUnavailable."""
    try:
        yield
    except SnapshotError:
        raise
    except Exception as error:
        kind = SnapshotUnavailable if isinstance(error, OSError | MemoryError) else SnapshotError
        raise kind(f"snapshot {snapshot.id} refused: {type(error).__name__}: {error}") from error


def _part(snapshot: Snapshot, load: Callable[[Snapshot], _Part], *, whole: bool) -> _Part | None:
    try:
        with _refusing(snapshot):
            return load(snapshot)
    except SnapshotError as error:
        if whole:
            raise
        log.error("a snapshot is served without a part", reason=str(error))
        return None


def _tables(snapshot: Snapshot) -> tuple[ItemTable, Filters, Popular]:
    items = ItemTable.load(snapshot.path(files.ITEMS), snapshot.path(files.ID_INDEX))
    if items.count != snapshot.manifest.items:
        raise ValueError(f"{files.ITEMS}: {items.count} items, the manifest says {snapshot.manifest.items}")
    return items, Filters(items), Popular.load(snapshot.path(files.POPULAR), items.count)


def _vectors(snapshot: Snapshot) -> _Vectors:
    """vectors.npy, memory-mapped: float16 [n, d]."""
    spec = snapshot.manifest
    vectors = map_vectors(snapshot.path(files.VECTORS))
    if vectors.dtype != np.float16 or vectors.shape != (spec.items, spec.dimension):
        found, expected = f"{vectors.dtype} {vectors.shape}", f"float16 {spec.items}x{spec.dimension}"
        raise ValueError(f"{files.VECTORS}: {found}, expected {expected}")
    return vectors


def _neighbours(snapshot: Snapshot) -> _Near:
    """neighbours.npy and similarities.npy, memory-mapped: see `neighbour_lists`."""
    count = snapshot.manifest.items
    near = _mapped(snapshot, files.NEIGHBOURS, np.int32, (None,))
    similar = _mapped(snapshot, files.SIMILARITIES, np.float16, (None,))
    lists = neighbour_lists(near, similar, count)
    starts = np.array(near[: count + 1])
    if starts[0] != 0 or starts[-1] != len(similar) or (np.diff(starts) < 0).any():
        raise ValueError(f"{files.NEIGHBOURS}: lists that do not follow one another")
    for rows in _blocks(snapshot, files.NEIGHBOURS, near[count + 1 :]):
        if not 0 <= rows.min() <= rows.max() < count:
            raise ValueError(f"{files.NEIGHBOURS}: a row outside 0 to {count - 1}")
    for numbers in _blocks(snapshot, files.SIMILARITIES, similar):
        if not (np.isfinite(numbers.min()) and np.isfinite(numbers.max())):
            raise ValueError(f"{files.SIMILARITIES}: a number is not finite")
    return lists


def _blocks(snapshot: Snapshot, name: str, array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """The numbers at the end of a file, as many as the array has, read and not mapped: what is looked at whole once
    must not stay in memory."""
    with snapshot.path(name).open("rb") as file:
        file.seek(-array.nbytes, os.SEEK_END)
        while array.nbytes and len(block := np.fromfile(file, array.dtype, _BLOCK)):
            yield block


def _no_neighbours(count: int) -> _Near:
    return np.empty((count, 0), np.int32), np.empty((count, 0), np.float16)


def _mapped(snapshot: Snapshot, name: str, dtype: type[np.generic], shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """An array that is read where it is needed. Raises ValueError on another dtype or shape (None: any length)."""
    array: npt.NDArray[Any] = np.asarray(np.load(snapshot.path(name), mmap_mode="r", allow_pickle=False))
    fits = array.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, array.shape, strict=True))
    if array.dtype != dtype or not fits:
        expected = "x".join("K" if length is None else str(length) for length in shape)
        raise ValueError(f"{name}: {array.dtype} {array.shape}, expected {np.dtype(dtype)} {expected}")
    return array


def _check_golden(encode: Encode, retriever: Retriever | GpuRetriever, spec: Manifest) -> None:
    """Asks the builder's golden queries. Raises ValueError when one is answered with other scores.

    A search that is exact where the builder's was not may find better ones; its scores are those of the vectors, which
    the builder's codes miss by a hundredth at most.
    """
    exact = isinstance(retriever, GpuRetriever) and retriever.is_exact and spec.index.kind != "flat"
    everything = np.ones(spec.items, np.bool_)
    for at, golden in enumerate(spec.golden):
        context = Context(np.array(golden.rows, np.int32), np.full(len(golden.rows), _VIEW, np.uint8))
        want = np.array(golden.top_scores, np.float32)
        queries = encode([tower_context(context, NOTHING, spec.query.places)])
        ((_, scores),) = retriever.search(queries, everything, CANDIDATES)
        best = scores[: len(want)]
        if len(best) == len(want) and exact:
            best = np.where(best >= want - _OF_CODES * max(1.0, np.abs(want).max(initial=0)), want, best)
        if len(best) < len(want) or not np.allclose(best, want, atol=_GOLDEN_TOLERANCE):
            raise ValueError(f"golden query {at} is answered otherwise than when it was built")


def _warmed(loaded: Loaded, *, whole: bool) -> Loaded:
    """Scores small and full batches once, so that the first shopper does not pay for first uses.

    Raises ValueError when `whole` and something fails; otherwise what fails is left out.
    """
    try:
        lacks = _first_lacks(replace(loaded, cascade=None))
    except NotScored:
        if whole:
            raise
        return replace(loaded, shelf=None)
    if whole and lacks:
        raise ValueError(f"warm-up: {', '.join(sorted(lacks))}")
    if Reason.RETRIEVAL_FAILED in lacks:
        loaded = replace(loaded, retriever=None)
    if Reason.RERANK_FAILED in lacks:
        loaded = replace(loaded, ranker=None)
    if loaded.cascade and Reason.RERANK_FAILED in _first_lacks(_ranked_by_the_strong(loaded, loaded.cascade)):
        if whole:
            raise ValueError(f"warm-up: the strong ranker {loaded.cascade.ranker.spec.id} failed")
        loaded = replace(loaded, cascade=None)
    return loaded


def _first_lacks(loaded: Loaded) -> set[Reason]:
    return {reason for scored in _first_scores(loaded) for reason in shortfalls(scored.answer, loaded)}


def _ranked_by_the_strong(loaded: Loaded, cascade: Cascade) -> Loaded:
    """The snapshot with the strong ranker in the other's place: all is asked of it, doubtful or not."""
    return replace(loaded, ranker=cascade.ranker, cascade=None)


def _first_scores(loaded: Loaded) -> list[Scored]:
    """Shared answers to contexts of one view, then personal steps upon them."""
    count = max(_WARM_BATCHES)
    spread = np.linspace(0, loaded.items.count - 1, num=count, dtype=np.int32)
    view, once, long_ago = np.array([_VIEW], np.uint8), np.ones(1, np.int32), np.zeros(1)
    questions = [Question(loaded, "", "", "", "", Context(spread[at : at + 1], view)) for at in range(count)]
    people = [Person(History(spread[at : at + 1], once, long_ago, long_ago, 1), 1.0) for at in reversed(range(count))]
    scored: list[Scored] = []
    for size in _WARM_BATCHES:
        shared = score([Work(question) for question in questions[:size]])
        scored += shared
        scored += score([Work(questions[at], people[at], each.answer) for at, each in enumerate(shared)])
    return scored
