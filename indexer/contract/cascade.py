"""How doubtful a question's order is at the cut of its page: what the cascade sends on to the strong ranker.

One code for the sweep that chooses and the service that serves. C candidates.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

Floats = npt.NDArray[np.float32]


class CascadeSpec(BaseModel):
    """How doubt is told from the fast ranker's scores; chosen on validation, for this ranker alone.

    `margin`: by the gap of the scores at the cut, the smaller the more. `band`: by the purchases to be expected of the
    candidates whose probability is within `width` times that at the cut, either way. A candidate's probability is
    1 / (1 + exp(-(slope l + offset))), l the logarithm of its share in the softmax of the scores.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: Literal["margin", "band"] = "margin"
    page: int = Field(default=10, ge=1, le=500, description="candidates before the cut")
    width: float = Field(default=1.25, gt=1)
    slope: float = 1.0
    offset: float = 0.0
    levels: tuple[float, ...] = Field(min_length=2, description="of doubt, that 0, .., 100 % of the questions reach")
    strong_ms: float = Field(ge=0, description="that a question cost the strong ranker where the snapshot was built")

    def threshold(self, share: float) -> float:
        """The doubt from which on a question is sent on, so that `share` (0..1) of them are; 0: none, 1: all."""
        if share <= 0 or share >= 1:
            return float("inf") if share <= 0 else float("-inf")
        return float(np.interp(share, np.linspace(0, 1, len(self.levels)), self.levels))


def doubt(scores: Floats, spec: CascadeSpec) -> float:
    """Of one question's scores, float32 [C]; -inf where all candidates are on the page, so that there is no cut."""
    if len(scores) <= spec.page:
        return float("-inf")
    ordered = -np.sort(-scores.astype(np.float64))
    if spec.kind == "margin":
        return float(ordered[spec.page] - ordered[spec.page - 1])
    chances = probabilities(ordered, spec.slope, spec.offset)
    cut = float(np.sqrt(chances[spec.page - 1] * chances[spec.page]))
    near = (chances <= cut * spec.width) & (chances >= cut / spec.width)
    return float(chances[near].sum())


def probabilities(scores: npt.NDArray[np.float64], slope: float, offset: float) -> npt.NDArray[np.float64]:
    """Calibrated by `slope` and `offset` (Platt, 1999), float64 [..., C]."""
    return np.asarray(1 / (1 + np.exp(-(slope * log_shares(scores) + offset))), np.float64)


def log_shares(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """ln of the softmax, float64 [..., C]."""
    level = scores - scores.max(axis=-1, keepdims=True)
    return np.asarray(level - np.log(np.exp(level).sum(axis=-1, keepdims=True)), np.float64)
