"""One list of candidates out of three: vector retrieval, neighbours of recent items, and the user's own history.

An item's score is the sum over the sources that name it of weight / (offset + rank), rank from 0: weighted reciprocal
rank fusion (Cormack, Clarke and Buettcher, 2009). A weight is a quota: at equal ranks, a source with twice the weight
fills twice the places; an item that several sources name comes before one that a single source names at that rank.
The sum is over sources, so that what is shared by all users can be blended first, cached, and joined by history later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from indexer.contract.items import Rows

Floats = npt.NDArray[np.float32]

ANN, NEIGHBOURS, HISTORY = 1, 2, 4
SOURCES = {ANN: "ann", NEIGHBOURS: "neighbours", HISTORY: "history"}
"""The bits of `Blend.sources` and their names in provenance."""
POPULARITY = 8
"""A fourth bit: of popular items that stand in where vector search is left out, with the weight of `ann`."""


class BlendSpec(BaseModel):
    """Weights of the sources, chosen on validation. `offset`: the higher, the less the first ranks stand out."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    ann: float = Field(default=1.0, ge=0)
    neighbours: float = Field(default=1.0, ge=0)
    history: float = Field(default=2.0, ge=0)
    offset: float = Field(default=10.0, gt=0)

    def weight(self, source: int) -> float:
        """The weight of a source by its bit."""
        return self.ann if source == POPULARITY else float(getattr(self, SOURCES[source]))


@dataclass(frozen=True, slots=True)
class Blend:
    """rows int32 [c], distinct, best first; scores float32 [c]; sources uint8 [c], the bits of those that name it."""

    rows: Rows
    scores: Floats
    sources: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)


NONE = Blend(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.uint8))


def ranked_list(source: int, rows: Rows, spec: BlendSpec) -> Blend:
    """A source's candidates, int32 [c], distinct, best first, with what they bring to the blend."""
    scores = spec.weight(source) / (spec.offset + np.arange(len(rows), dtype=np.float32))
    return Blend(rows.astype(np.int32), scores.astype(np.float32), np.full(len(rows), source, np.uint8))


def blend(parts: Sequence[Blend], *, without: Rows | None = None) -> Blend:
    """The parts as one: scores added, source bits joined, best first, equal scores by row; rows of `without` left out.

    Blending blends is the same as blending their parts at once. The first are reranked, the rest is the reserve.
    """
    named = np.concatenate([part.rows for part in (NONE, *parts)])
    by_row = np.argsort(named, kind="stable")
    named = named[by_row]
    starts = np.flatnonzero(np.diff(named, prepend=-1))
    if not len(starts):
        return NONE
    rows = named[starts]
    scores = np.add.reduceat(np.concatenate([part.scores for part in parts])[by_row], starts)
    sources = np.bitwise_or.reduceat(np.concatenate([part.sources for part in parts])[by_row], starts)
    order = np.argsort(-scores, kind="stable")
    if without is not None and len(without):
        order = order[~np.isin(rows[order], without)]
    return Blend(rows[order], scores[order], sources[order])


def source_names(bits: int) -> tuple[str, ...]:
    """The names of the sources in a candidate's bits."""
    return tuple(name for bit, name in {**SOURCES, POPULARITY: "popularity"}.items() if bits & bit)
