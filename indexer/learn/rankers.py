"""Which teacher, which student: chosen on validation, fitted again on all that is known.

Q questions, C candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from indexer.learn.evaluate import PerQuestion
from indexer.learn.intervals import Bootstrap
from indexer.learn.list_training import ListSettings, Trained, score, soft_targets
from indexer.learn.lists import Lists, Scores
from indexer.learn.student import Student, fit_student
from indexer.learn.teacher import Mean, Teacher, Transformer, Trees, best_teacher, cross_fitted
from indexer.progress import Stages
from indexer.settings import LearnSettings

LABELS, DISTILLED = "labels", "distilled"


@dataclass(frozen=True, slots=True)
class Chosen:
    """The teacher and the student that were best on validation, each knowing for how long to learn.

    module, soft    the student itself, and the soft targets float32 [Q, C] that it was told, if it was
    scores          the teacher's of the questions of both windows, float32 [Q, C]; it had not seen any of them
    strong          the listwise transformer, where one is wanted for the cascade
    figures         NDCG@10 on validation of every teacher and student that was tried
    """

    teacher_name: str
    teacher: Teacher
    student_name: str
    labels: ListSettings
    distilled: ListSettings
    module: Student
    soft: Scores | None
    scores: Scores
    strong: Transformer | None
    figures: dict[str, float]

    @property
    def student(self) -> ListSettings:
        """The settings of the student that is published."""
        return self.labels if self.student_name == LABELS else self.distilled


@dataclass(frozen=True, slots=True)
class Fitted:
    """The teacher and both students after learning from the same lists."""

    teacher: Teacher
    students: dict[str, Trained[Student]]


def choose(
    train: Lists,
    check: Lists,
    settings: LearnSettings,
    stages: Stages,
    *,
    threads: int,
    seed: int,
    reader: Callable[[], Teacher],
) -> Chosen:
    """Fits every teacher that the settings name, and both students, on `train`; compares them on `check`.

    `reader` makes the cross-encoder, which needs to know the items' titles.
    """
    base = ListSettings(epochs=settings.epochs, threads=threads, seed=seed)
    with stages.stage("teachers"):
        fitted = _teachers(train, check, settings, base, reader)
        name, teacher, figures = best_teacher(fitted, check)
        unseen = cross_fitted(teacher, train, seed=seed)
        soft = soft_targets(unseen, train)
        strong = _strong(dict(fitted), train, check, settings, base)
    with stages.stage("students"):
        without = fit_student(train, base, check=check)
        with_soft = fit_student(train, replace(base, soft=settings.soft), check=check, soft=soft)
    students = {LABELS: without, DISTILLED: with_soft}
    worth = {key: check.ndcg(score(each.module, check)) for key, each in students.items()}
    figures |= {f"student_{key}": float(each.mean()) for key, each in worth.items()}
    best = _better(worth, check, seed)
    return Chosen(
        teacher_name=name,
        teacher=teacher,
        student_name=best,
        labels=replace(base, epochs=without.epochs),
        distilled=replace(base, epochs=with_soft.epochs, soft=settings.soft),
        module=students[best].module,
        soft=soft if best == DISTILLED else None,
        scores=np.concatenate([unseen, teacher.score(check)]),
        strong=strong,
        figures={key: round(figure, 5) for key, figure in figures.items()},
    )


def fit(chosen: Chosen, lists: Lists, stages: Stages) -> Fitted:
    """Teacher and students from scratch on the questions of `choose`, for as long as was best on validation."""
    with stages.stage("teachers"):
        teacher = chosen.teacher.fit(lists)
    with stages.stage("students"):
        students = {name: fit_chosen(chosen, name, lists, chosen.scores) for name in (LABELS, DISTILLED)}
    return Fitted(teacher, students)


def fit_chosen(chosen: Chosen, name: str, lists: Lists, scores: Scores) -> Trained[Student]:
    """A student from scratch on `lists`; `scores` float32 [Q, C] of a teacher that had not seen them."""
    if name == LABELS:
        return fit_student(lists, chosen.labels)
    return fit_student(lists, chosen.distilled, soft=soft_targets(scores, lists))


def _better(worth: dict[str, PerQuestion], check: Lists, seed: int) -> str:
    """The distilled student, unless the one by labels alone is better by more than chance: one window seldom tells them
    apart, and what a teacher smooths varies less from night to night (docs/decisions/0009)."""
    ahead = Bootstrap(check.users, seed=seed).difference(worth[LABELS], worth[DISTILLED])
    return LABELS if ahead.low > 0 else DISTILLED


def _teachers(
    train: Lists, check: Lists, settings: LearnSettings, base: ListSettings, reader: Callable[[], Teacher]
) -> list[tuple[str, Teacher]]:
    makers: dict[str, Callable[[], Teacher]] = {
        "trees": lambda: Trees(threads=base.threads, seed=base.seed),
        "transformer": lambda: _transformer(settings, base),
        "cross_encoder": reader,
    }
    fitted: dict[str, Teacher] = {
        name: make().fit(train, check) for name, make in makers.items() if name in settings.teachers
    }
    if "mean" in settings.teachers and len(fitted) > 1:
        fitted["mean"] = Mean(tuple(fitted.values()))
    return list(fitted.items())


def _transformer(settings: LearnSettings, base: ListSettings) -> Transformer:
    return Transformer(replace(base, rate=1e-3), settings.transformer_members)


def _strong(
    fitted: dict[str, Teacher], train: Lists, check: Lists, settings: LearnSettings, base: ListSettings
) -> Transformer | None:
    """One transformer for the cascade: the first of the teacher's, or one that is fitted for it."""
    if not settings.strong_ranker:
        return None
    known = fitted.get("transformer")
    if not isinstance(known, Transformer):
        known = replace(_transformer(settings, base), members=1).fit(train, check)
    return replace(known, members=1, modules=known.modules[:1])


def figures_of(fitted: Fitted, lists: Lists) -> dict[str, Any]:
    """Scores float32 [Q, C] of the teacher and of each student, by name."""
    out = {"teacher": fitted.teacher.score(lists)}
    return out | {f"student_{name}": score(each.module, lists) for name, each in fitted.students.items()}
