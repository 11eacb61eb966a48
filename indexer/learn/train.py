"""From examples to a ranker that may be served, and to what it is worth beside retrieval order and popularity."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from indexer.ann import CANDIDATES, search
from indexer.contract.features import FEATURES, Floats, candidate_features, query_vector
from indexer.contract.items import ItemTable, Rows
from indexer.contract.manifest import QuerySpec, RankerSpec
from indexer.learn.evaluate import hits, mean_and_margin, ndcg, recall
from indexer.learn.examples import Example
from indexer.learn.export import OnnxRanker, check_parity, export_onnx
from indexer.learn.ranker import TrainingSet, fit, retrieval_order
from indexer.popularity import Scores, scaled
from indexer.vector_store import Vectors

Candidates = tuple[Rows, Floats]
_BATCH = 256
_PARITY_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The index at its operating point, and what makes a query of a context."""

    index: faiss.Index
    nprobe: int
    vectors: Vectors
    query: QuerySpec

    def queries(self, examples: Sequence[Example]) -> Floats:
        """float32 [E, d]."""
        return np.stack([query_vector(self.vectors, example.context, self.query) for example in examples])

    def candidates(self, examples: Sequence[Example], k: int) -> list[Candidates]:
        """The best `k` rows and their scores for each example, fewer where fewer are found."""
        found: list[Candidates] = []
        for first in range(0, len(examples), _BATCH):
            scores, rows = search(self.index, self.queries(examples[first : first + _BATCH]), k, self.nprobe)
            for row, score in zip(rows, scores, strict=True):
                found.append((row[row >= 0].astype(np.int32), score[row >= 0]))
        return found


@dataclass(frozen=True, slots=True)
class Lesson:
    """Examples, and the popularity scores float64 [n] of the time before them: none of it knows what comes later."""

    examples: Sequence[Example]
    popularity: Scores


@dataclass(frozen=True, slots=True)
class Learned:
    """`trained_on`: questions that taught something; 0: the order of retrieval is kept, for the reason in `why`."""

    ranker: RankerSpec
    trained_on: int
    why: str
    weights: dict[str, float]
    parity: float


def train(
    lesson: Lesson,
    items: ItemTable,
    retrieval: Retrieval,
    path: Path,
    *,
    depth: int,
    least: int,
    threads: int,
    seed: int,
) -> Learned:
    """Fits the ranker, writes it to `path` as ONNX and checks parity. Raises GateFailed."""
    ranker, blocks, trained_on, why = retrieval_order(), list[Floats](), 0, ""
    if len(lesson.examples) < least:
        why = f"{len(lesson.examples)} sessions to learn from, index.ranker.min_sessions is {least}"
    else:
        candidates = retrieval.candidates(lesson.examples, depth)
        blocks = _features(lesson, items, retrieval.query, candidates)
        answerable = _training_set(lesson, candidates, blocks, depth).answerable()
        if len(answerable) < least // 4:
            why = f"retrieval finds a target for {len(answerable)} sessions, {least // 4} are needed"
        else:
            ranker, trained_on = fit(answerable, threads=threads), len(answerable)
    spec = export_onnx(ranker, path, depth=depth)
    parity = check_parity(ranker, OnnxRanker(path), blocks[:_PARITY_BLOCKS], seed)
    weights = dict(zip(FEATURES, ranker.weights.detach().flatten().tolist(), strict=True))
    return Learned(spec, trained_on, why, {name: round(weight, 6) for name, weight in weights.items()}, parity)


def evaluate(lesson: Lesson, items: ItemTable, retrieval: Retrieval, ranker: OnnxRanker, depth: int) -> dict[str, Any]:
    """NDCG@10 of the ranker, of retrieval order and of the popularity list; recall@50 and @500 of the latter two.

    Each figure with half of its 95 % interval. The whole catalogue is ranked, repeats included.
    """
    examples = lesson.examples
    targets = [example.targets for example in examples]
    candidates = retrieval.candidates(examples, CANDIDATES)
    top = [(rows[:depth], scores[:depth]) for rows, scores in candidates]
    blocks = _features(lesson, items, retrieval.query, top)
    ranked = [
        rows[np.argsort(-ranker.score(block[None])[0], kind="stable")]
        for (rows, _), block in zip(top, blocks, strict=True)
    ]
    popular = np.argsort(-lesson.popularity, kind="stable")[:CANDIDATES].astype(np.int32)
    popular = popular[lesson.popularity[popular] > 0]
    return {
        "ranked": _measured(ranked, targets, recalls=()),
        "retrieval": _measured([rows for rows, _ in candidates], targets, recalls=(50, 500)),
        "popularity": _measured([popular] * len(examples), targets, recalls=(50, 500)),
    }


def _features(lesson: Lesson, items: ItemTable, query: QuerySpec, candidates: Sequence[Candidates]) -> list[Floats]:
    then = copy.copy(items)
    then.popularity = scaled(lesson.popularity)
    return [
        candidate_features(then, example.context, query, rows, scores)
        for example, (rows, scores) in zip(lesson.examples, candidates, strict=True)
    ]


def _training_set(
    lesson: Lesson, candidates: Sequence[Candidates], blocks: Sequence[Floats], depth: int
) -> TrainingSet:
    features = np.zeros((len(blocks), depth, len(FEATURES)), np.float32)
    positive = np.zeros((len(blocks), depth), np.bool_)
    present = np.zeros((len(blocks), depth), np.bool_)
    for at, (example, (rows, _), block) in enumerate(zip(lesson.examples, candidates, blocks, strict=True)):
        features[at, : len(rows)] = block
        positive[at, : len(rows)] = np.isin(rows, example.targets)
        present[at, : len(rows)] = True
    return TrainingSet(features, positive, present)


def _measured(ranked: Sequence[Rows], targets: Sequence[Rows], *, recalls: Sequence[int]) -> dict[str, float]:
    table = np.full((len(ranked), max(10, *(len(rows) for rows in ranked))), -1, np.int64)
    for at, rows in enumerate(ranked):
        table[at, : len(rows)] = rows
    hit = hits(table, targets)
    figures: dict[str, float] = {}
    for name, values in [
        ("ndcg@10", ndcg(hit, targets, 10)),
        *((f"recall@{k}", recall(hit, targets, k)) for k in recalls),
    ]:
        figures[name], figures[f"{name}_margin"] = mean_and_margin(values)
    return figures
