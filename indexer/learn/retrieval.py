"""The three sources of candidates for questions of the past, as the service would find them, and their blend chosen.

Q questions. Vector search is whatever is given: exact, or the index that is to be published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from indexer.contract.blend import Blend, BlendSpec
from indexer.contract.candidates import Shelf
from indexer.contract.features import Context, query_vector
from indexer.contract.history import History, RepurchaseSpec, history_features
from indexer.contract.items import Mask, Rows
from indexer.contract.manifest import QuerySpec
from indexer.contract.sources import CANDIDATES, Shared, history_lists, join, neighbours_of, share
from indexer.contract.towers import INPUTS, Mode, tower_context, tower_inputs
from indexer.learn.evaluate import hits, recall
from indexer.learn.histories import Histories
from indexer.learn.interactions import Interactions
from indexer.learn.questions import Question
from indexer.learn.repurchase import fit_repurchase
from indexer.learn.search import Search
from indexer.learn.towers import SessionTower

Floats = npt.NDArray[np.float32]
_BATCH = 256
_WEIGHTS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_OFFSETS = (5.0, 10.0, 20.0, 40.0, 80.0)


@dataclass(frozen=True, slots=True)
class Asked:
    """A question and what the user bought before it, as far as the service keeps it."""

    question: Question
    history: History


@dataclass(frozen=True, slots=True)
class Found:
    """The lists of one question, int32, best first, and its session vector float32 [d], through float16.

    ann, neighbours     what all who ask with its context share
    history, near       what the user's history adds: see `sources.history_lists`
    """

    context: Rows
    ann: Rows
    neighbours: Rows
    history: Rows
    near: Rows
    vector: Floats

    def shared(self, spec: BlendSpec) -> Shared:
        """What all share."""
        return share(self.ann, self.neighbours, self.context, self.vector, spec)

    def blend(self, spec: BlendSpec) -> Blend:
        """All as one."""
        return join(self.shared(spec).candidates, self.history, self.near, spec)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """What a snapshot holds of retrieval. `vectors_of` gives the session vectors float32 [B, d] of contexts."""

    shelf: Shelf
    vectors_of: Callable[[Sequence[Context]], Floats]
    search: Search
    mode: Mode
    places: int = 50


def ask(questions: Sequence[Question], log: Interactions, kept: int) -> list[Asked]:
    """The questions with the `kept` latest items of the user's history."""
    histories = Histories(log)
    return [Asked(each, histories.at(each.user, each.session, each.day).latest(kept)) for each in questions]


def find(asked: Sequence[Asked], retrieval: Retrieval) -> list[Found]:
    """The candidates of each question, in order."""
    found: list[Found] = []
    for first in range(0, len(asked), _BATCH):
        part = asked[first : first + _BATCH]
        queries = session_vectors(part, retrieval)
        longest = max(len(each.question.context) for each in part)
        nearest = retrieval.search(queries, CANDIDATES + longest)
        found += [_found(*each, retrieval) for each in zip(part, nearest, queries, strict=True)]
    return found


def session_vectors(asked: Sequence[Asked], retrieval: Retrieval) -> Floats:
    """float32 [Q, d]; in mode "personal" the history takes part."""
    personal = retrieval.mode == "personal"
    return retrieval.vectors_of(
        [
            tower_context(each.question.context, each.history.rows[: None if personal else 0], retrieval.places)
            for each in asked
        ]
    )


def by_tower(tower: SessionTower, vectors: npt.NDArray[np.float16]) -> Callable[[Sequence[Context]], Floats]:
    """Session vectors by the session tower over item vectors float16 [n, d]."""

    def vectors_of(contexts: Sequence[Context]) -> Floats:
        inputs = tower_inputs(vectors, list(contexts))
        with torch.inference_mode():
            return np.asarray(tower(*(torch.from_numpy(inputs[name]) for name in INPUTS)).numpy(), np.float32)

    return vectors_of


def by_mean(vectors: npt.NDArray[np.float16], spec: QuerySpec) -> Callable[[Sequence[Context]], Floats]:
    """Session vectors without a tower: the mean of the context's item vectors float16 [n, d]."""
    return lambda contexts: np.stack([query_vector(vectors, context, spec) for context in contexts])


def repurchase_model(asked: Sequence[Asked]) -> RepurchaseSpec:
    """Fitted to questions: was an item of the history, that the context does not hold, among the targets?"""
    features: list[Floats] = []
    bought: list[Mask] = []
    for each in asked:
        open_ = ~np.isin(each.history.rows, each.question.context.rows)
        features.append(history_features(each.history, each.question.day)[open_])
        bought.append(np.isin(each.history.rows[open_], each.question.targets))
    return fit_repurchase(features, bought)


def choose_blend(found: Sequence[Found], targets: Sequence[Rows], depth: int) -> BlendSpec:
    """The weights with the highest mean recall@depth on these questions; the weight of neighbours is 1."""

    def worth(spec: BlendSpec) -> float:
        ranked = padded([each.blend(spec).rows for each in found], depth)
        return float(recall(hits(ranked, targets), targets, depth).mean())

    best = max((BlendSpec(offset=offset) for offset in _OFFSETS), key=worth)
    grid = [
        BlendSpec(ann=ann, neighbours=1.0, history=history, offset=best.offset)
        for ann, history in product(_WEIGHTS, repeat=2)
    ]
    best = max([best, *grid], key=worth)
    return max((best.model_copy(update={"offset": offset}) for offset in _OFFSETS), key=worth)


def padded(lists: Sequence[Rows], length: int) -> Rows:
    """int32 [Q, length]: lists cut, or filled up with -1."""
    out = np.full((len(lists), length), -1, np.int32)
    for at, rows in enumerate(lists):
        out[at, : min(length, len(rows))] = rows[:length]
    return out


def _found(asked: Asked, nearest: Rows, query: Floats, retrieval: Retrieval) -> Found:
    question, shelf = asked.question, retrieval.shelf
    known = question.context.rows
    ann = nearest[(nearest >= 0) & ~np.isin(nearest, known)][:CANDIDATES]
    ann = ann if query.any() else ann[:0]
    near = neighbours_of(shelf, known, None)
    vector = query.astype(np.float16).astype(np.float32)
    return Found(known, ann, near, *history_lists(shelf, known, asked.history, question.day, None), vector)
