"""The student: the ranker that is served. Target attention over stored item vectors, beside the cheap features.

B questions, C candidates, N attended events, F features, d dimensions. Each candidate is scored on its own, so that the
cost grows with the candidates and the events, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from indexer.contract.candidates import FEATURES, INPUTS, OUTPUT
from indexer.contract.manifest import TensorSpec
from indexer.contract.towers import TYPES
from indexer.errors import GateFailed
from indexer.learn.list_training import ListSettings, Trained, train_on_lists
from indexer.learn.lists import Lists, Scores
from indexer.learn.onnx_file import onnx_bytes
from indexer.learn.target_attention import ATTENTION, Standard, TargetAttention

PARITY = 1e-4
"""The largest difference of a score between ONNX and torch, relative to the score where that is above 1."""
_WIDTH = 64
_DROPOUT = 0.1
_SHAPES = ((1, 50, 1), (1, 50, 50), (3, 7, 4), (32, 50, 20))


class Student(nn.Module):
    """features [B, C, F], candidate_vectors [B, C, d], context_vectors [B, N, d], context_types int64 and context_mask
    bool [B, N], newest first -> scores float32 [B, C]; what is padded, is scored too."""

    def __init__(self, mean: Tensor, scale: Tensor, places: int) -> None:
        super().__init__()
        inputs = len(mean) + ATTENTION
        self.places = places
        self.standard = Standard(mean, scale)
        self.attention = TargetAttention(places)
        self.plain = nn.Linear(inputs, 1)
        self.deep = nn.Sequential(
            nn.Linear(inputs, _WIDTH), nn.GELU(), nn.Dropout(_DROPOUT),
            nn.Linear(_WIDTH, _WIDTH // 2), nn.GELU(), nn.Linear(_WIDTH // 2, 1),
        )  # fmt: skip

    def forward(
        self,
        features: Tensor,
        candidate_vectors: Tensor,
        context_vectors: Tensor,
        context_types: Tensor,
        context_mask: Tensor,
        present: Tensor | None = None,
    ) -> Tensor:
        """As the class says; `present` is of no account."""
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
    return (
        TensorSpec(name="features", dtype="float32", shape=("batch", "candidates", len(FEATURES)), columns=FEATURES),
        TensorSpec(name="candidate_vectors", dtype="float32", shape=("batch", "candidates", dimension)),
        TensorSpec(name="context_vectors", dtype="float32", shape=("batch", "context", dimension)),
        TensorSpec(name="context_types", dtype="int64", shape=("batch", "context")),
        TensorSpec(name="context_mask", dtype="bool", shape=("batch", "context")),
    )


def export_student(student: Student, dimension: int, path: Path) -> None:
    """Writes `student_inputs` -> scores float32 [batch, candidates] as ONNX; at most `student.places` events."""
    batch, candidates = torch.export.Dim("batch"), torch.export.Dim("candidates")
    context = torch.export.Dim("context", max=student.places)
    example = (
        torch.zeros(2, 3, len(FEATURES)),
        torch.zeros(2, 3, dimension),
        torch.zeros(2, 4, dimension),
        torch.zeros(2, 4, dtype=torch.int64),
        torch.ones(2, 4, dtype=torch.bool),
    )
    shapes = {name: {0: batch, 1: candidates if at < 2 else context} for at, name in enumerate(INPUTS)}
    path.write_bytes(onnx_bytes(student, example, list(INPUTS), [OUTPUT], shapes))


def check_student(student: Student, dimension: int, path: Path, *, seed: int) -> float:
    """The largest difference of a score between ONNX and torch over several shapes, empty contexts among them.

    Raises GateFailed above PARITY, or when a score is not finite.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    mean, scale = student.standard.mean.numpy(), student.standard.scale.numpy()
    worst = 0.0
    for size, candidates, wanted in _SHAPES:
        context = min(wanted, student.places)
        lengths = random.integers(0, context, size, endpoint=True)
        features = mean + scale * random.standard_normal((size, candidates, len(FEATURES)))
        inputs = {
            "features": features.astype(np.float32),
            "candidate_vectors": random.standard_normal((size, candidates, dimension)).astype(np.float32),
            "context_vectors": random.standard_normal((size, context, dimension)).astype(np.float32),
            "context_types": random.integers(0, TYPES, (size, context)),
            "context_mask": np.arange(context) < lengths[:, None],
        }
        (ours,) = session.run([OUTPUT], inputs)
        with torch.inference_mode():
            theirs = student(*(torch.from_numpy(inputs[name]) for name in INPUTS)).numpy()
        if not np.isfinite(ours).all():
            raise GateFailed("no_nan: the student gave a score that is not finite")
        worst = max(worst, float((np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))).max()))
    if worst > PARITY:
        raise GateFailed(f"parity: scores of ONNX and torch differ by {worst:.2g}, at most {PARITY:g} is allowed")
    return worst
