"""A listwise transformer: every candidate sees all the others before it is scored. A teacher, too slow to be served.

B questions, C candidates, N attended events, F features, d dimensions.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from indexer.learn.target_attention import ATTENTION, Standard, TargetAttention, cosines

_WIDTH = 64
_HEADS = 4
_DROPOUT = 0.15


class Listwise(nn.Module):
    """Two layers of attention among the candidates, biased by the cosine of their vectors; scores float32 [B, C].

    features [B, C, F], candidate_vectors [B, C, d], context_vectors [B, N, d], context_types int64 and context_mask
    bool [B, N], present bool [B, C].
    """

    def __init__(self, mean: Tensor, scale: Tensor, places: int) -> None:
        super().__init__()
        self.standard = Standard(mean, scale)
        self.attention = TargetAttention(places)
        self.enter = nn.Sequential(nn.Linear(len(mean) + ATTENTION, _WIDTH), nn.GELU(), nn.Linear(_WIDTH, _WIDTH))
        self.layers = nn.ModuleList(_Layer() for _ in range(2))
        self.leave = nn.Sequential(nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, 1))
        self.plain = nn.Linear(len(mean) + ATTENTION, 1)

    def forward(
        self,
        features: Tensor,
        candidate_vectors: Tensor,
        context_vectors: Tensor,
        context_types: Tensor,
        context_mask: Tensor,
        present: Tensor,
    ) -> Tensor:
        """As the class says."""
        seen = self.attention(candidate_vectors, context_vectors, context_types, context_mask)
        inputs = torch.cat([self.standard(features), seen], dim=-1)
        state = self.enter(inputs)
        likeness = cosines(candidate_vectors, candidate_vectors)
        for layer in self.layers:
            state = layer(state, likeness, present)
        return torch.as_tensor(self.leave(state) + self.plain(inputs)).squeeze(-1)


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.project, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.forward_part = nn.Sequential(nn.Linear(_WIDTH, 2 * _WIDTH), nn.GELU(), nn.Linear(2 * _WIDTH, _WIDTH))
        self.like = nn.Parameter(torch.zeros(_HEADS, 1, 1))
        self.drop = nn.Dropout(_DROPOUT)

    def forward(self, state: Tensor, likeness: Tensor, present: Tensor) -> Tensor:
        batch, count, _ = state.shape
        parts = self.project(self.before(state)).view(batch, count, 3, _HEADS, _WIDTH // _HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        bias = (self.like * likeness.unsqueeze(1)).masked_fill(~present[:, None, None, :], -1e4)
        mixed = scaled_dot_product_attention(query, key, value, bias).transpose(1, 2).reshape(batch, count, _WIDTH)
        state = state + self.drop(self.out(mixed))
        return state + torch.as_tensor(self.drop(self.forward_part(self.between(state))))
