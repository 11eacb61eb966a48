"""Scoring a batch of questions: retrieve, gather features, rerank. Runs on the compute thread."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import structlog

from fallback.ladder import Reason, Rung
from indexer.contract.features import candidate_features
from services.errors import NotScored
from services.feed.answer import Answer
from services.feed.loaded import Loaded
from services.feed.question import Question
from services.feed.retrieval import Candidates

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Scored:
    """The answer to a question, the rung that it stands on, and the time that its batch took."""

    answer: Answer
    rung: Rung
    reason: Reason | None
    retrieve_ms: float
    rerank_ms: float


def score(questions: Sequence[Question]) -> list[Scored]:
    """One answer per question, in order. Raises NotScored when retrieval fails; a failed rerank degrades instead."""
    start = time.perf_counter()
    candidates = _retrieve(questions)
    middle = time.perf_counter()
    ranked = _rerank(questions, candidates)
    end = time.perf_counter()
    times = ((middle - start) * 1e3, (end - middle) * 1e3)
    return [Scored(answer, rung, reason, *times) for answer, rung, reason in ranked]


def _retrieve(questions: Sequence[Question]) -> list[Candidates]:
    """Questions of one snapshot and one filter are searched together."""
    groups: dict[tuple[int, str, str], list[int]] = defaultdict(list)
    for at, question in enumerate(questions):
        groups[id(question.loaded), question.category, question.region].append(at)
    found: list[Candidates] = [(np.empty(0, np.int32), np.empty(0, np.float32))] * len(questions)
    for places in groups.values():
        first = questions[places[0]]
        retriever = first.loaded.retriever
        if retriever is None:
            raise NotScored(Reason.NO_INDEX)
        try:
            results = retriever.retrieve(
                [questions[at].context for at in places], first.loaded.eligible(first.category, first.region)
            )
        except (RuntimeError, ValueError, AssertionError) as error:
            log.error("retrieval failed", snapshot=first.loaded.id, error=str(error))
            raise NotScored(Reason.RETRIEVAL_FAILED, str(error)) from error
        for at, result in zip(places, results, strict=True):
            found[at] = result
    return found


def _rerank(questions: Sequence[Question], candidates: list[Candidates]) -> list[tuple[Answer, Rung, Reason | None]]:
    """Questions of one snapshot are reranked together."""
    groups: dict[int, list[int]] = defaultdict(list)
    for at, question in enumerate(questions):
        groups[id(question.loaded)].append(at)
    out: dict[int, tuple[Answer, Rung, Reason | None]] = {}
    for places in groups.values():
        loaded = questions[places[0]].loaded
        out.update(zip(places, _rerank_one(loaded, [(questions[p], candidates[p]) for p in places]), strict=True))
    return [out[at] for at in range(len(questions))]


def _rerank_one(loaded: Loaded, work: list[tuple[Question, Candidates]]) -> list[tuple[Answer, Rung, Reason | None]]:
    ranker = loaded.ranker
    if ranker is None:
        return [(_unranked(found), Rung.RETRIEVED, Reason.NO_RANKER) for _, found in work]
    depth = ranker.spec.depth
    spec = loaded.manifest.query
    try:
        scores = ranker.score(
            [
                candidate_features(loaded.items, question.context, spec, rows[:depth], found[:depth])
                for question, (rows, found) in work
            ]
        )
    except Exception as error:  # noqa: BLE001 - onnxruntime raises kinds of its own that share no base
        log.error("rerank failed", snapshot=loaded.id, ranker=loaded.ranker_id, error=str(error))
        return [(_unranked(found), Rung.RETRIEVED, Reason.RERANK_FAILED) for _, found in work]
    answers: list[tuple[Answer, Rung, Reason | None]] = []
    for (_, (rows, found)), given in zip(work, scores, strict=True):
        order = np.argsort(-given, kind="stable").astype(np.uint16)
        answers.append((Answer.of(rows, found, order, given[order]), Rung.RANKED, None))
    return answers


def _unranked(found: Candidates) -> Answer:
    rows, scores = found
    return Answer.of(rows, scores, np.empty(0, np.uint16), np.empty(0, np.float32))
