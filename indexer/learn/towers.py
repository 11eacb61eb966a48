"""The two towers: items and sessions become vectors whose inner product says how likely the item comes next.

B questions, N places of a context (newest first), n items, D content dimensions, d = 128.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from indexer.contract.towers import TYPES

DIMENSION = 128
_HIDDEN = 256
_HEADS = 4


class ItemTower(nn.Module):
    """vector = MLP(content vector) + id embedding + bias, where there is an id; float32 [., d].

    `content` float32 [., D]; `slots` int64 [.]: the item's row of `ids`, 0 for an item without one. The last number of
    a vector is the item's bias: its part in the inner product is scaled by what the session tower puts there.
    """

    def __init__(self, content_dimension: int, start: Tensor) -> None:
        """`start` float32 [m, d]: id embeddings to begin with, row 0 of zeros."""
        super().__init__()
        self.content = nn.Sequential(
            nn.Linear(content_dimension, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, DIMENSION)
        )
        with torch.no_grad():
            self.content[2].weight.mul_(0.2)
        self.ids = nn.Embedding.from_pretrained(start, freeze=False, padding_idx=0, sparse=True)

    def forward(self, content: Tensor, slots: Tensor) -> Tensor:
        """As the class says."""
        return torch.as_tensor(self.content(content) + self.ids(slots))


class SessionTower(nn.Module):
    """Attention pooling over a context: what each of 4 heads looks for depends on the newest item and on the mean.

    item_vectors float32 [B, N, d], types int64 [B, N], mask bool [B, N] (True: an event stands here), position = index,
    newest first -> float32 [B, d]. A context without events gives the vector of an empty context.
    """

    def __init__(self, places: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(places, DIMENSION))
        self.kind = nn.Parameter(torch.zeros(TYPES, DIMENSION))
        self.recency = nn.Parameter(torch.linspace(0, -3, places).repeat(_HEADS, 1).T.contiguous())
        self.kind_weight = nn.Parameter(torch.zeros(TYPES, _HEADS))
        self.key = nn.Linear(DIMENSION, DIMENSION)
        self.query = nn.Linear(2 * DIMENSION, DIMENSION)
        self.value = nn.Linear(DIMENSION, DIMENSION)
        self.out = nn.Sequential(nn.Linear(2 * DIMENSION, 2 * DIMENSION), nn.GELU(), nn.Linear(2 * DIMENSION, DIMENSION))
        self.scale = nn.Parameter(torch.full((DIMENSION,), 5.0))
        with torch.no_grad():
            self.scale[-1] = 0.0
            self.out[2].weight.mul_(0.2)
            self.out[2].bias[-1] = 1.0

    def forward(self, item_vectors: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        """As the class says."""
        batch, places, _ = item_vectors.shape
        present = mask.to(item_vectors.dtype).unsqueeze(-1)
        inputs = (item_vectors + self.position[:places] + self.kind[types]) * present
        mean = inputs.sum(dim=1) / present.sum(dim=1).clamp(min=1)
        query = self.query(torch.cat([inputs[:, 0], mean], dim=1)).view(batch, 1, _HEADS, -1)
        keys = self.key(inputs).view(batch, places, _HEADS, -1)
        logits = (keys * query).sum(dim=-1) / keys.shape[-1] ** 0.5 + self.recency[:places] + self.kind_weight[types]
        weights = torch.softmax(logits.masked_fill(~mask.unsqueeze(-1), -1e9), dim=1) * present
        values = self.value(item_vectors).view(batch, places, _HEADS, -1)
        pooled = (weights.unsqueeze(-1) * values).sum(dim=1).reshape(batch, DIMENSION)
        plain = (weights.mean(dim=2, keepdim=True) * item_vectors).sum(dim=1)
        return self.scale * plain + torch.as_tensor(self.out(torch.cat([pooled, plain], dim=1)))
