"""The night before the night: everything is chosen, learned and measured on the past, as it will be done today.

Rankers learn from sessions after the events that vectors and neighbours were made of, as they will be asked; what is
chosen is chosen on the window after that, and what is reported, on the one after that again, with all retrained.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from indexer.contract.cascade import CascadeSpec
from indexer.contract.history import RepurchaseSpec
from indexer.contract.manifest import SourcesSpec
from indexer.learn.cascade import fit_cascade
from indexer.learn.compress import choose as cheapest
from indexer.learn.compress import measure, variants
from indexer.learn.cross_encoder import Reader
from indexer.learn.lessons import Window, best_blend, lesson_questions, window
from indexer.learn.list_training import score
from indexer.learn.lists import Lists, Scores, joined
from indexer.learn.material import Material, Windows
from indexer.learn.onnx_ranker import run_times
from indexer.learn.questions import questions
from indexer.learn.ranker_export import ranker_bytes
from indexer.learn.rankers import Chosen, choose, fit
from indexer.learn.rehearsed import ParentRanking, evaluated
from indexer.learn.retrieval import Asked, ask
from indexer.learn.search import search_in
from indexer.learn.study import Method, repurchase_before, study
from indexer.learn.teacher import Teacher
from indexer.mapped import let_go
from indexer.progress import Stages
from indexer.settings import IndexSettings

_STRONG_RUNS = 100


class NothingToLearn(Exception):
    """No candidate of any question was right, so that there is nothing to rank; the message names the window."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What the past taught: how to blend, who ranks and for how long to learn, and what it is worth.

    lists       all questions with their candidates, to learn from again
    scores      the teacher's, float32 [Q, C], of each question before it had seen it
    precision   the variant of the ranker that is cheapest within the floor; see `compress`
    report      what was tried on validation
    """

    windows: Windows
    sources: SourcesSpec
    method: Method
    chosen: Chosen
    lists: Lists
    scores: Scores
    precision: str
    cascade: CascadeSpec | None
    report: dict[str, Any]
    evaluation: dict[str, Any]


def rehearse(
    material: Material,
    windows: Windows,
    folder: Path,
    stages: Stages,
    settings: IndexSettings,
    method: Method,
    parent: ParentRanking | None,
) -> Rehearsal:
    """Learns as of the past. Raises NothingToLearn, and GateFailed when a vector is not finite."""
    learn, ranker, seed = settings.learn, settings.ranker, settings.seed

    def again(day: float) -> RepurchaseSpec:
        span = windows.evaluate - windows.train
        return repurchase_before(material, day, span, limit=learn.train_questions, kept=ranker.history, seed=seed)

    def asked(start: float, stop: float, limit: int) -> list[Asked]:
        found = questions(material.log, start, stop, known=True, seed=seed, limit=limit)
        return ask(found, material.log, ranker.history)

    def lists(of: Window) -> Lists:
        return of.lists(sources.shared, ranker.depth, ranker.places)

    begin = windows.train
    early = study(material, begin, folder / "early", stages, method, again(begin), stop_by=windows.validate)
    if method.towers is not None and early.towers is not None:
        method = replace(method, towers=replace(method.towers, epochs=early.towers.epochs))
    with stages.stage("candidates"):
        search = search_in(early.shelf.vectors, exact_up_to=learn.exact_up_to, seed=seed)
        check = window(early, asked(windows.validate, windows.evaluate, learn.validate_questions), "shared", search)
        sources = SourcesSpec(
            neighbours=early.shelf.near,
            shared=best_blend(check),
            personal=best_blend(window(early, check.asked, "personal", search)),
            history=ranker.history,
        )
        lessons = lesson_questions(material.log, begin, windows.validate, learn.train_questions, ranker.history, seed)
        train_lists = lists(window(early, lessons, "shared", search))
        del search
        begun = time.thread_time()
        check_lists = lists(check)
        assembly_s = (time.thread_time() - begun) / max(1, len(check_lists))
        let_go(early.shelf.vectors)
    for name, these in (("train", train_lists), ("validate", check_lists)):
        if not these.answerable().any():
            raise NothingToLearn(f"no target of {len(these)} questions is a candidate (index.learn.{name}_share)")
    chosen = choose(
        train_lists,
        check_lists,
        learn,
        stages,
        threads=settings.thread_count,
        seed=seed,
        reader=partial(_reader, material, settings),
    )
    with stages.stage("compress", len(ranker.variants), "variants") as advance:
        size = early.shelf.vectors.shape[1]
        made = variants(
            chosen.module, size, train_lists, chosen.student, soft=chosen.soft, wanted=ranker.variants, advance=advance
        )
        table = measure(
            list(made),
            check_lists,
            price_per_vcpu_hour=ranker.price_per_vcpu_hour,
            assembly_s=assembly_s,
            seed=seed,
        )
        precision = cheapest(table, ranker.floor).name
        cascade = _cascade(chosen, check_lists, size, seed)
    known = joined([train_lists, check_lists])
    fitted = fit(chosen, known, stages)

    late = study(material, windows.evaluate, folder / "late", stages, method, again(windows.evaluate))
    with stages.stage("evaluate"):
        search = search_in(late.shelf.vectors, exact_up_to=learn.exact_up_to, seed=seed)
        later = window(late, asked(windows.evaluate, windows.end, learn.evaluate_questions), "shared", search)
        del search
        later_lists = lists(later)
        let_go(late.shelf.vectors)
        evaluation = evaluated(windows, later, later_lists, sources.shared, chosen, fitted, parent, seed)
        scores = np.concatenate([chosen.scores, fitted.teacher.score(later_lists)])
    everything = joined([known, later_lists])
    final = sources.model_copy(update={"repurchase": again(windows.end)})
    report = {
        "validation": chosen.figures,
        "compression": [row.as_dict() for row in table],
        "assembly_ms": round(assembly_s * 1e3, 3),
    }
    return Rehearsal(windows, final, method, chosen, everything, scores, precision, cascade, report, evaluation)


def _reader(material: Material, settings: IndexSettings) -> Teacher:
    titles = [material.items.title(row) for row in range(material.items.count)]
    return Reader(titles, settings.encoder.model, threads=settings.thread_count, seed=settings.seed)


def _cascade(chosen: Chosen, check: Lists, dimension: int, seed: int) -> CascadeSpec | None:
    """How doubt is told and what it costs to ask the strong ranker; None without one."""
    if chosen.strong is None:
        return None
    model = ranker_bytes(chosen.strong.modules[0], dimension)
    took = run_times([model], check, 1, _STRONG_RUNS, seed=seed)
    return fit_cascade(score(chosen.module, check), check, strong_ms=float(np.median(took)) * 1e3)
