"""The student: the ranker that is served. Target attention over stored item vectors, beside the cheap features.

B questions, C candidates, N attended events, F features, d dimensions. Each candidate is scored on its own, so that the
cost grows with the candidates and the events, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from indexer.contract.manifest import TensorSpec
from indexer.learn.list_training import ListSettings, Trained, train_on_lists
from indexer.learn.lists import Lists, Scores
from indexer.learn.ranker_export import PARITY, check_ranker, declared, ranker_bytes
from indexer.learn.target_attention import HEADS, ListRanker, TargetAttention

HIDDEN = 64, 32
"""Units of the two hidden layers, before anything is pruned."""
_DROPOUT = 0.1


class Student(ListRanker):
    """features [B, C, F], candidate_vectors [B, C, d], context_vectors [B, N, d], context_types int64 and context_mask
    bool [B, N], newest first -> scores float32 [B, C]; what is padded, is scored too."""

    listwise = False

    def __init__(
        self, mean: Tensor, scale: Tensor, places: int, *, hidden: tuple[int, int] = HIDDEN, heads: int = HEADS
    ) -> None:
        super().__init__(mean, scale, places)
        self.attention = TargetAttention(places, heads)
        inputs = len(mean) + self.attention.columns
        self.plain = nn.Linear(inputs, 1)
        self.deep = nn.Sequential(
            nn.Linear(inputs, hidden[0]), nn.GELU(), nn.Dropout(_DROPOUT),
            nn.Linear(hidden[0], hidden[1]), nn.GELU(), nn.Linear(hidden[1], 1),
        )  # fmt: skip

    def forward(
        self,
        features: Tensor,
        candidate_vectors: Tensor,
        context_vectors: Tensor,
        context_types: Tensor,
        context_mask: Tensor,
        candidate_mask: Tensor | None = None,
    ) -> Tensor:
        """As the class says; `candidate_mask` is of no account."""
        seen = self.attention(candidate_vectors, context_vectors, context_types, context_mask)
        inputs = torch.cat([self.standard(features), seen], dim=-1)
        return torch.as_tensor(self.plain(inputs) + self.deep(inputs)).squeeze(-1)


def fit_student(
    lists: Lists,
    settings: ListSettings,
    *,
    check: Lists | None = None,
    soft: Scores | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Trained[Student]:
    """Learns from labels and, where `soft` float32 [Q, C] is given (see `soft_targets`), from the teacher's view."""
    places = lists.context_mask.shape[1]
    return train_on_lists(
        lambda mean, scale: Student(mean, scale, places), lists, settings, check=check, soft=soft, advance=advance
    )


def student_inputs(dimension: int) -> tuple[TensorSpec, ...]:
    """What the manifest declares of the student."""
    return declared(dimension)


def export_student(student: Student, dimension: int, path: Path) -> None:
    """Writes `student_inputs` -> scores float32 [batch, candidates] as ONNX; at most `student.places` events."""
    path.write_bytes(ranker_bytes(student, dimension))


def check_student(student: Student, dimension: int, path: Path, *, seed: int) -> float:
    """As `check_ranker`: the largest difference of a score; raises GateFailed."""
    return check_ranker(student, dimension, path.read_bytes(), seed=seed)


__all__ = ["PARITY", "Student", "check_student", "export_student", "fit_student", "student_inputs"]
