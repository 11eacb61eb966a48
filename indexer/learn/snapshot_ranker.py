"""Ranks questions of the past as a published snapshot would: from its files alone, without the service.

Q questions; rows are those of the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import faiss
import numpy as np
import numpy.typing as npt
import onnxruntime

from indexer.contract import manifest as names
from indexer.contract.ann_index import AnnIndex
from indexer.contract.candidates import Shelf, Shopper, ranker_tensors
from indexer.contract.features import Context
from indexer.contract.history import History, latest_first
from indexer.contract.items import ItemTable, Rows
from indexer.contract.manifest import Manifest
from indexer.contract.neighbours import neighbour_lists
from indexer.contract.snapshot import Snapshot
from indexer.contract.sources import first
from indexer.contract.towers import OUTPUT, Mode, tower_inputs
from indexer.contract.vector_file import map_vectors
from indexer.learn.onnx_file import cpu_session
from indexer.learn.retrieval import Asked, Found, Retrieval, by_mean, find
from indexer.learn.search import Search

Floats = npt.NDArray[np.float32]
_BATCH = 64
_UNKNOWN = -2


@dataclass(frozen=True, slots=True)
class RankedList:
    """rows int32 [c] and scores float32 [c] of what was reranked, best first, then `reserve` int32, in blend order."""

    rows: Rows
    scores: Floats
    reserve: Rows


class SnapshotRanker:
    """Everything that ranks, loaded from one verified snapshot."""

    def __init__(self, snapshot: Snapshot, *, threads: int) -> None:
        """Raises SnapshotError naming the file that is lacking or damaged."""
        self.manifest: Manifest = snapshot.manifest
        self.items = ItemTable.load(snapshot.path(names.ITEMS), snapshot.path(names.ID_INDEX))
        vectors = map_vectors(snapshot.path(names.VECTORS))
        near, similar = (
            np.load(snapshot.path(name), mmap_mode="r", allow_pickle=False)
            for name in (names.NEIGHBOURS, names.SIMILARITIES)
        )
        lists = neighbour_lists(near, similar, self.items.count)
        self.shelf = Shelf.of(self.items, vectors, *lists, self.manifest.sources)
        self._ranker = cpu_session(snapshot.path(names.RANKER).read_bytes(), threads)
        self._vectors_of = by_mean(vectors, self.manifest.query)
        if self.manifest.query.kind == "session_tower":
            self._vectors_of = _by_onnx(cpu_session(snapshot.path(names.SESSION_TOWER).read_bytes(), threads), vectors)
        faiss.omp_set_num_threads(threads)
        self._search = _search(AnnIndex.load(snapshot.path(names.INDEX), vectors, self.manifest.index))

    def rank(self, asked: Sequence[Asked], mode: Mode = "shared") -> list[RankedList]:
        """The ranking of each question, whatever its items' regions and availability."""
        spec = self.manifest.sources.shared if mode == "shared" else self.manifest.sources.personal
        ranker = self.manifest.ranker
        out: list[RankedList] = []
        for start in range(0, len(asked), _BATCH):
            part = [self.kept(each) for each in asked[start : start + _BATCH]]
            found = self.find(part, mode)
            blends = [each.blend(spec) for each in found]
            heads = [first(each, ranker.depth) for each in blends]
            shoppers = [
                Shopper(one.question.context, one.history, one.question.day, each.vector)
                for one, each in zip(part, found, strict=True)
            ]
            tensors = ranker_tensors(self.shelf, shoppers, heads, ranker.places)
            (scores,) = self._ranker.run([ranker.output], {each.name: tensors[each.name] for each in ranker.inputs})
            for head, whole, given in zip(heads, blends, np.asarray(scores, np.float32), strict=True):
                order = np.argsort(-given[: len(head)], kind="stable")
                out.append(RankedList(head.rows[order], given[order], whole.rows[len(head) :]))
        return out

    def find(self, asked: Sequence[Asked], mode: Mode = "shared") -> list[Found]:
        """The candidates of each question, which must hold no more than is `kept`."""
        return find(asked, Retrieval(self.shelf, self._vectors_of, self._search, mode, self.manifest.query.places))

    def kept(self, asked: Asked) -> Asked:
        """With as much of context and history as the service would take."""
        question, most = asked.question, self.manifest.query.max_events
        context = Context(question.context.rows[:most], question.context.types[:most])
        return Asked(replace(question, context=context), asked.history.latest(self.manifest.sources.history))


def in_rows_of(asked: Sequence[Asked], items: ItemTable, other: ItemTable) -> list[Asked]:
    """The same questions in the rows of another snapshot's items; what that one lacks is left out, or, among the
    targets, a row below 0."""
    known: dict[int, int] = {}

    def rows_of(rows: Rows) -> Rows:
        for row in rows.tolist():
            if row not in known:
                found = other.row(items.item_id(row))
                known[row] = _UNKNOWN if found is None else found
        return np.array([known[row] for row in rows.tolist()], np.int32)

    out: list[Asked] = []
    for each in asked:
        question, history = each.question, each.history
        context, before = rows_of(question.context.rows), rows_of(history.rows)
        here, kept = context >= 0, before >= 0
        past = History(before[kept], history.times[kept], history.first[kept], history.last[kept], history.sessions)
        out.append(
            Asked(
                replace(
                    question,
                    context=Context(context[here], question.context.types[here]),
                    targets=rows_of(question.targets),
                ),
                latest_first(past),
            )
        )
    return out


def _by_onnx(
    session: onnxruntime.InferenceSession, vectors: npt.NDArray[np.float16]
) -> Callable[[Sequence[Context]], Floats]:
    def vectors_of(contexts: Sequence[Context]) -> Floats:
        (found,) = session.run([OUTPUT], tower_inputs(vectors, list(contexts)))
        return np.asarray(found, np.float32)

    return vectors_of


def _search(index: AnnIndex) -> Search:
    return lambda queries, count: np.asarray(index.search(queries, count)[1], np.int32)
