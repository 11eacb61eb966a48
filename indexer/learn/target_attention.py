"""Parts that rankers of candidates share: standardised features, and attention of a candidate to what was seen.

B questions, C candidates, N attended events, F features, d dimensions, H heads. Item vectors are met only by cosines:
a ranker stays right when the towers are trained anew and their space is turned.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from indexer.contract.towers import TYPES

HEADS = 4
_CLIP = 6.0
_SHORTEST = 1e-6


class Standard(nn.Module):
    """Features [..., F] less their mean, over their deviation, at most 6 either way."""

    def __init__(self, mean: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("scale", scale)

    def forward(self, features: Tensor) -> Tensor:
        """As the class says."""
        return ((features - self.mean) / self.scale).clamp(-_CLIP, _CLIP)


class ListRanker(nn.Module):
    """A network that scores the candidates of questions: the inputs of `list_training.ranker_inputs`, in their order ->
    scores float32 [B, C]. At most `places` events; `listwise`: whether it looks at the last one, candidate_mask.
    """

    listwise: ClassVar[bool]

    def __init__(self, mean: Tensor, scale: Tensor, places: int) -> None:
        super().__init__()
        self.places = places
        self.standard = Standard(mean, scale)


class TargetAttention(nn.Module):
    """For each candidate and head: the likeness that it finds among the events, and what those events were.

    candidate_vectors [B, C, d], context_vectors [B, N, d], context_types int64 and context_mask bool [B, N], newest
    first -> [B, C, 2 H]. An event weighs by its cosine with the candidate, its place and its type. Without events: 0.
    """

    def __init__(self, places: int, heads: int = HEADS) -> None:
        super().__init__()
        self.columns = 2 * heads
        self.sharpness = nn.Parameter(torch.linspace(0.0, 12.0, heads).view(heads, 1, 1))
        self.recency = nn.Parameter(torch.linspace(0.0, -1.0, places).repeat(heads, 1))
        self.age = nn.Parameter(torch.linspace(0.5, -0.5, places).repeat(heads, 1))
        self.kind = nn.Parameter(torch.zeros(TYPES, heads))
        self.meaning = nn.Parameter(torch.randn(TYPES, heads) * 0.1)

    def forward(
        self, candidate_vectors: Tensor, context_vectors: Tensor, context_types: Tensor, context_mask: Tensor
    ) -> Tensor:
        """As the class says."""
        places = context_vectors.shape[1]
        present = context_mask.to(candidate_vectors.dtype).unsqueeze(1)
        like = cosines(candidate_vectors, context_vectors).unsqueeze(1)
        bias = self.recency[:, :places] + self.kind[context_types].transpose(1, 2) + (present - 1) * 1e4
        weights = torch.softmax(like * self.sharpness + bias.unsqueeze(2), dim=-1)
        value = (self.age[:, :places] + self.meaning[context_types].transpose(1, 2)) * present
        found = torch.cat([(weights * like).sum(dim=-1), (weights @ value.unsqueeze(-1)).squeeze(-1)], dim=1)
        return (found * present.amax(dim=-1, keepdim=True)).transpose(1, 2)


def cosines(left: Tensor, right: Tensor) -> Tensor:
    """[B, C, d] and [B, N, d] -> [B, C, N]; 0 where a vector is 0."""
    ours, theirs = (each.norm(dim=-1, keepdim=True).clamp_min(_SHORTEST) for each in (left, right))
    likeness = left @ right.transpose(1, 2)  # divided after it, since there are fewer of these than of the vectors
    return torch.as_tensor(likeness / ours / theirs.transpose(1, 2))
