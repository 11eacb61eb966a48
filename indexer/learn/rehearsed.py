"""What the rehearsal was worth: every ranking of the evaluation window beside the others, with paired intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from indexer.contract.blend import BlendSpec
from indexer.contract.items import Rows
from indexer.learn.evaluate import PerQuestion, hits, ndcg, recall
from indexer.learn.intervals import Bootstrap, Interval
from indexer.learn.lessons import Window
from indexer.learn.lists import Lists, Scores
from indexer.learn.material import Windows
from indexer.learn.rankers import Chosen, Fitted, figures_of
from indexer.learn.retrieval import Asked, padded

ParentRanking = Callable[[Sequence[Asked]], tuple[Sequence[Rows], Sequence[Rows]]]
"""The parent's ranking of each question and the question's targets, in the parent's rows."""
_DEPTH = 500


def evaluated(
    windows: Windows,
    asked: Window,
    lists: Lists,
    blend: BlendSpec,
    chosen: Chosen,
    fitted: Fitted,
    parent: ParentRanking | None,
    seed: int,
) -> dict[str, Any]:
    """The evaluation of the manifest. `two_stage` is the student that was chosen on validation."""
    targets = [each.question.targets for each in asked.asked]
    bootstrap = Bootstrap(lists.users, seed=seed)
    popular = np.argsort(-asked.study.shelf.popularity, kind="stable")[:_DEPTH].astype(np.int32)
    popular = popular[asked.study.shelf.popularity[popular] > 0]
    rankings: dict[str, Sequence[Rows]] = {
        "popularity": [popular] * len(targets),
        "towers": [each.ann for each in asked.found],
        "neighbours": [each.neighbours for each in asked.found],
        "history": [each.history for each in asked.found],
        "blend": [each.blend(blend).rows for each in asked.found],
    }
    session: dict[str, Any] = {}
    by_question: dict[str, PerQuestion] = {}
    for name, ranked in rankings.items():
        hit = hits(padded(ranked, _DEPTH), targets)
        by_question[name] = ndcg(hit, targets, 10)
        session[name] = _figures(by_question[name], bootstrap) | {
            f"recall_at_{k}": round(float(recall(hit, targets, k).mean()), 5) for k in (50, _DEPTH)
        }
    for name, scores in figures_of(fitted, lists).items():
        by_question[name] = lists.ndcg(scores)
        session[name] = _figures(by_question[name], bootstrap)
    by_question["two_stage"] = by_question[f"student_{chosen.student_name}"]
    session["two_stage"] = session["blend"] | session[f"student_{chosen.student_name}"]
    for name, values in by_question.items():
        if name != "blend":
            session[name]["over_blend"] = _lift(bootstrap, values, by_question["blend"])
    out: dict[str, Any] = {
        "task": "the rest of a session after its first 1 to 5 items, repeats included, over the whole catalogue",
        "questions": len(targets),
        "windows": windows.as_text(),
        "session": session,
        "kept_of_the_teachers_lift": _kept(by_question),
    }
    if parent is not None:
        theirs = _parents(parent, asked.asked)
        out["parent"] = {
            **_figures(theirs, bootstrap),
            "difference": _interval(bootstrap.difference(by_question["two_stage"], theirs)),
        }
    return out


def _parents(parent: ParentRanking, asked: Sequence[Asked]) -> PerQuestion:
    ranked, targets = parent(asked)
    return ndcg(hits(padded(ranked, 10), targets), targets, 10)


def _kept(by_question: dict[str, PerQuestion]) -> dict[str, float]:
    """By student, its lift over the order of the blend as a share of the teacher's; nothing where there is no lift."""
    base, teacher = by_question["blend"].mean(), by_question["teacher"].mean()
    if teacher <= base:
        return {}
    students = {name: values for name, values in by_question.items() if name.startswith("student_")}
    return {name: round(float((values.mean() - base) / (teacher - base)), 4) for name, values in students.items()}


def _figures(values: PerQuestion, bootstrap: Bootstrap) -> dict[str, Any]:
    return {"ndcg_at_10": round(float(values.mean()), 5), "interval": _interval(bootstrap.mean(values))}


def _lift(bootstrap: Bootstrap, ours: PerQuestion, theirs: PerQuestion) -> dict[str, float] | None:
    return _interval(bootstrap.lift(ours, theirs)) if theirs.any() else None


def _interval(interval: Interval) -> dict[str, float]:
    return {name: round(value, 5) for name, value in asdict(interval).items()}


def same_scores(scores: Scores, lists: Lists, other: Sequence[tuple[Rows, Scores]]) -> float:
    """The largest difference between scores float32 [Q, C] of `lists` and those that another code gave by row,
    relative to the score where that is above 1; infinite where other rows were ranked."""
    worst = 0.0
    for at, (rows, given) in enumerate(other):
        mine = lists.rows[at][lists.present[at]]
        order, theirs = np.argsort(mine), np.argsort(rows)
        if not np.array_equal(mine[order], rows[theirs]):
            return float("inf")
        ours = scores[at][lists.present[at]][order]
        worst = max(worst, float((np.abs(ours - given[theirs]) / np.maximum(1.0, np.abs(ours))).max(initial=0.0)))
    return worst
