"""A listwise transformer: every candidate sees all the others before it is scored. A teacher, and the strong ranker of
the cascade: too slow to be served to all.

B questions, C candidates, N attended events, F features, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from indexer.contract.manifest import TensorSpec
from indexer.learn.ranker_export import check_ranker, declared, ranker_bytes
from indexer.learn.target_attention import ListRanker, TargetAttention, cosines

_WIDTH = 64
_HEADS = 4
_DROPOUT = 0.15


class Listwise(ListRanker):
    """Two layers of attention among the candidates, biased by the cosine of their vectors; scores float32 [B, C].

    features [B, C, F], candidate_vectors [B, C, d], context_vectors [B, N, d], context_types int64 and context_mask
    bool [B, N], candidate_mask bool [B, C].
    """

    listwise = True

    def __init__(self, mean: Tensor, scale: Tensor, places: int) -> None:
        super().__init__(mean, scale, places)
        self.attention = TargetAttention(places)
        inputs = len(mean) + self.attention.columns
        self.enter = nn.Sequential(nn.Linear(inputs, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
        self.layers = nn.ModuleList(_Layer() for _ in range(2))
        self.leave = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 1))
        self.plain = nn.Linear(inputs, 1)

    def forward(
        self,
        features: Tensor,
        candidate_vectors: Tensor,
        context_vectors: Tensor,
        context_types: Tensor,
        context_mask: Tensor,
        candidate_mask: Tensor,
    ) -> Tensor:
        """As the class says."""
        seen = self.attention(candidate_vectors, context_vectors, context_types, context_mask)
        inputs = torch.cat([self.standard(features), seen], dim=-1)
        state = self.enter(inputs)
        likeness = cosines(candidate_vectors, candidate_vectors)
        for layer in self.layers:
            state = layer(state, likeness, candidate_mask)
        return torch.as_tensor(self.leave(state) + self.plain(inputs)).squeeze(-1)


def listwise_inputs(dimension: int) -> tuple[TensorSpec, ...]:
    """What the manifest declares of it: the student's inputs and `candidates.CANDIDATE_MASK`."""
    return declared(dimension, listwise=True)


def export_listwise(module: Listwise, dimension: int, path: Path) -> None:
    """Writes `listwise_inputs` -> scores float32 [batch, candidates] as ONNX; at most `module.places` events."""
    path.write_bytes(ranker_bytes(module, dimension))


def check_listwise(module: Listwise, dimension: int, path: Path, *, seed: int) -> float:
    """As `check_ranker`: the largest difference of a score; raises GateFailed."""
    return check_ranker(module, dimension, path.read_bytes(), seed=seed)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.project, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.forward_part = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))
        self.like = nn.Parameter(torch.zeros(_HEADS, 1, 1))
        self.drop = nn.Dropout(_DROPOUT)

    def forward(self, state: Tensor, likeness: Tensor, candidate_mask: Tensor) -> Tensor:
        batch, count, _ = state.shape
        parts = self.project(self.before(state)).view(batch, count, 3, _HEADS, _WIDTH // _HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        bias = (self.like * likeness.unsqueeze(1)).masked_fill(~candidate_mask[:, None, None, :], -1e4)
        mixed = scaled_dot_product_attention(query, key, value, bias).transpose(1, 2)
        mixed = mixed.clone(memory_format=torch.contiguous_format).view(batch, count, _WIDTH)  # so that it is exported
        state = state + self.drop(self.out(mixed))
        return state + torch.as_tensor(self.drop(self.forward_part(self.between(state))))
