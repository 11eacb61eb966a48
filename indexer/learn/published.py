"""The models that are published: learned from everything that is known today, by what the rehearsal chose."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from indexer.contract import manifest as names
from indexer.contract.candidates import FEATURES, OUTPUT
from indexer.contract.cascade import CascadeSpec
from indexer.contract.manifest import RankerSpec, SourcesSpec, TensorSpec
from indexer.learn import tower_export
from indexer.learn.compress import variants
from indexer.learn.list_training import soft_targets
from indexer.learn.listwise import check_listwise, export_listwise, listwise_inputs
from indexer.learn.material import Material
from indexer.learn.onnx_file import onnx_bytes
from indexer.learn.rankers import DISTILLED, fit_chosen
from indexer.learn.rehearsal import Rehearsal
from indexer.learn.student import check_student, export_student, student_inputs
from indexer.learn.study import Method, Study, study
from indexer.learn.teacher import write_scores
from indexer.learn.towers import DIMENSION
from indexer.progress import Stages
from indexer.settings import RankerSettings


@dataclass(frozen=True, slots=True)
class Models:
    """The study of today, how its sources are blended, its rankers, and what the report says of how they were made."""

    study: Study
    sources: SourcesSpec
    ranker: RankerSpec
    strong: RankerSpec | None
    cascade: CascadeSpec | None
    report: dict[str, Any]
    evaluation: dict[str, Any]


def learn_today(
    material: Material,
    rehearsal: Rehearsal,
    folder: Path,
    stages: Stages,
    settings: RankerSettings,
    *,
    seed: int,
) -> Models:
    """Writes vectors, neighbours, session_tower.onnx, ranker.onnx and the rehearsed teacher's soft scores to `folder`.

    Raises GateFailed when ONNX and torch differ, or when a number is not finite.
    """
    today = study(material, None, folder, stages, rehearsal.method, rehearsal.sources.repurchase)
    report: dict[str, Any] = {"windows": rehearsal.windows.as_text(), "blend": _blend(rehearsal.sources)}
    if today.towers is not None:
        with stages.stage("export"):
            path = folder / names.SESSION_TOWER
            tower_export.export_session_tower(today.towers.session, path)
            parity = tower_export.check_parity(today.towers.session, path, seed=seed)
        report["towers"] = {"epochs": today.towers.epochs, "parity": parity}
    chosen = rehearsal.chosen
    write_scores(folder / names.TEACHER_SCORES, rehearsal.lists, rehearsal.scores)
    with stages.stage("students"):
        student = fit_chosen(chosen, chosen.student_name, rehearsal.lists, rehearsal.scores).module
    dimension = today.shelf.vectors.shape[1]
    path = folder / names.RANKER
    with stages.stage("export"):
        export_student(student, dimension, path)
        parity = check_student(student, dimension, path, seed=seed)
        if rehearsal.precision != "fp32":
            soft = soft_targets(rehearsal.scores, rehearsal.lists) if chosen.student_name == DISTILLED else None
            (made,) = variants(
                student, dimension, rehearsal.lists, chosen.student, soft=soft, wanted=(rehearsal.precision,)
            )
            path.write_bytes(made.model)
        strong = _strong(rehearsal, dimension, folder, settings, seed)
    report["ranker"] = {
        "student": chosen.student_name,
        "teacher": chosen.teacher_name,
        "precision": rehearsal.precision,
        "parity": parity,
    }
    report |= {**rehearsal.report, "lists": len(rehearsal.lists)}
    return Models(
        study=today,
        sources=rehearsal.sources,
        ranker=_spec("student", path, settings, student_inputs(dimension)),
        strong=strong,
        cascade=rehearsal.cascade,
        report=report,
        evaluation=rehearsal.evaluation,
    )


def without_learning(
    material: Material, method: Method, folder: Path, stages: Stages, settings: RankerSettings, *, why: str
) -> Models:
    """Content vectors, whatever neighbours there are, and a ranker that keeps the order of the blend."""
    sources = SourcesSpec(history=settings.history)
    today = study(material, None, folder, stages, method, sources.repurchase)
    path = folder / names.RANKER
    with stages.stage("export"):
        path.write_bytes(blend_order())
    spec = _spec("blend-order", path, settings, _only_features())
    report = {"why": why, "blend": _blend(sources)}
    return Models(today, sources, spec, None, None, report, {"questions": 0, "why": why})


def _strong(
    rehearsal: Rehearsal, dimension: int, folder: Path, settings: RankerSettings, seed: int
) -> RankerSpec | None:
    """The listwise transformer for the cascade, learned from all lists; None when none is wanted."""
    if rehearsal.chosen.strong is None:
        return None
    module = rehearsal.chosen.strong.fit(rehearsal.lists).modules[0]
    path = folder / names.STRONG_RANKER
    export_listwise(module, dimension, path)
    check_listwise(module, dimension, path, seed=seed)
    return _spec("listwise", path, settings, listwise_inputs(dimension))


class _BlendOrder(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        """features float32 [B, C, F] -> the column blend_score, float32 [B, C]."""
        return features[:, :, FEATURES.index("blend_score")] * 1.0


def blend_order() -> bytes:
    """An ONNX ranker whose score is that of the blend."""
    batch, candidates = torch.export.Dim("batch"), torch.export.Dim("candidates")
    example = (torch.zeros(2, 3, len(FEATURES)),)
    return onnx_bytes(_BlendOrder(), example, ["features"], [OUTPUT], {"features": {0: batch, 1: candidates}})


def _only_features() -> tuple[TensorSpec, ...]:
    return student_inputs(DIMENSION)[:1]


def _spec(kind: str, path: Path, settings: RankerSettings, inputs: tuple[TensorSpec, ...]) -> RankerSpec:
    return RankerSpec(
        id=f"{kind}-{_digest(path)}",
        kind=kind,
        depth=settings.depth,
        places=settings.places,
        inputs=inputs,
        output=OUTPUT,
    )


def _digest(path: Path) -> str:
    return blake2b(path.read_bytes(), digest_size=4).hexdigest()


def _blend(sources: SourcesSpec) -> dict[str, Any]:
    return {"shared": sources.shared.model_dump(), "personal": sources.personal.model_dump()}
