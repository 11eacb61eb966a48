"""The two towers: items and sessions become vectors whose inner product says how likely the item comes next.

B questions, N places of a context (newest first), n items, D content dimensions, d = 128.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from indexer.contract.towers import TYPES

DIMENSION = 128
_HIDDEN = 128
_HEADS = 4
_SCALE = 5.0
"""The length of the query to begin with, for items of length 1: the temperature of the softmax."""


class ItemTower(nn.Module):
    """vector = MLP(content vector) + id embedding + bias, where there is an id; float32 [., d].

    `content` float32 [., D]; `slots` int64 [.]: the item's row of `ids`, 0 for an item without one. The last number of
    a vector is the item's bias: its part in the inner product is scaled by what the session tower puts there.
    """

    def __init__(self, content_dimension: int, start: Tensor) -> None:
        """`start` float32 [m, d]: id embeddings to begin with, row 0 of zeros."""
        super().__init__()
        self.content = nn.Sequential(nn.Linear(content_dimension, _HIDDEN), nn.GELU(), _faint(_HIDDEN))
        self.ids = nn.Embedding(len(start), start.shape[1], padding_idx=0, sparse=True, _weight=start)

    def forward(self, content: Tensor, slots: Tensor) -> Tensor:
        """As the class says."""
        return torch.as_tensor(self.content(content) + self.ids(slots))


class SessionTower(nn.Module):
    """Attention pooling over a context: what each of 4 heads looks for depends on the newest item and on the mean.

    No place is projected on its own: the keys' projection is folded into the query, the values' follows the pooling, so
    that a context costs its length times the heads. An input is item vector + position + kind; it is never made: sums
    and products of its three parts are.

    item_vectors float32 [B, N, d], types int64 [B, N], mask bool [B, N] (True: an event stands here), position = index,
    newest first -> float32 [B, d]. A context without events gives the vector of an empty context.
    """

    def __init__(self, places: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.zeros(places, DIMENSION))
        self.kind = nn.Parameter(torch.zeros(TYPES, DIMENSION))
        self.recency = nn.Parameter(torch.linspace(0, -3, places).repeat(_HEADS, 1).T.contiguous())
        self.kind_weight = nn.Parameter(torch.zeros(TYPES, _HEADS))
        self.query = nn.Linear(2 * DIMENSION, _HEADS * DIMENSION)
        last = _faint(_HIDDEN)
        self.out = nn.Sequential(nn.Linear((_HEADS + 1) * DIMENSION, _HIDDEN), nn.GELU(), last)
        self.scale = nn.Parameter(torch.full((DIMENSION,), _SCALE))
        with torch.no_grad():
            self.scale[-1] = 0.0
            last.bias[-1] = 1.0

    def forward(self, item_vectors: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        """As the class says."""
        batch, places, _ = item_vectors.shape
        present = mask.to(item_vectors.dtype)
        kinds = nn.functional.one_hot(types, TYPES).to(item_vectors.dtype)
        first = nn.functional.pad(present[:, :1], (0, places - 1))
        asked = torch.stack([first, present / present.sum(dim=1, keepdim=True).clamp(min=1)], dim=1)
        newest_and_mean = asked @ item_vectors + asked @ self.position[:places] + (asked @ kinds) @ self.kind
        query = self.query(newest_and_mean.flatten(1)).view(batch, _HEADS, DIMENSION).transpose(1, 2)
        wanted = item_vectors @ query + self.position[:places] @ query + kinds @ (self.kind @ query)
        logits = wanted / DIMENSION**0.5 + self.recency[:places] + kinds @ self.kind_weight
        weights = torch.softmax(logits.masked_fill(~mask.unsqueeze(-1), -1e9), dim=1) * present.unsqueeze(-1)
        heads = weights.transpose(1, 2) @ item_vectors
        plain, pooled = heads.mean(dim=1), heads.reshape(batch, _HEADS * DIMENSION)
        return self.scale * plain + torch.as_tensor(self.out(torch.cat([pooled, plain], dim=1)))


def _faint(width: int) -> nn.Linear:
    """A last layer that says little to begin with, so that the id embeddings, which are good already, lead."""
    layer = nn.Linear(width, DIMENSION)
    with torch.no_grad():
        layer.weight.mul_(0.2)
    return layer
