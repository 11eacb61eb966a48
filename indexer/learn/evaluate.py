"""How good a ranking is. E questions; `ranked` int [E, K], best first, -1 where nothing stands; targets per question.

Plain functions of rows: they score any ranking, offline or served.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indexer.contract.items import Rows

Ranked = npt.NDArray[np.integer]
PerQuestion = npt.NDArray[np.float64]


def hits(ranked: Ranked, targets: Sequence[Rows]) -> npt.NDArray[np.bool_]:
    """bool [E, K]: whether the item at each place is a target."""
    return np.array([np.isin(row, wanted) & (row >= 0) for row, wanted in zip(ranked, targets, strict=True)])


def ndcg(hit: npt.NDArray[np.bool_], targets: Sequence[Rows], k: int) -> PerQuestion:
    """NDCG@k of each question, float64 [E]: sum of 1 / log2(rank + 1) over hits, over that of the best order."""
    gains = 1 / np.log2(np.arange(2, k + 2))
    best = np.array([gains[: len(wanted)].sum() for wanted in targets])
    top = hit[:, :k]
    return np.asarray(top @ gains[: top.shape[1]] / best, np.float64)


def recall(hit: npt.NDArray[np.bool_], targets: Sequence[Rows], k: int) -> PerQuestion:
    """Recall@k of each question, float64 [E]: the share of its targets among the first k."""
    return np.asarray(hit[:, :k].sum(axis=1) / np.array([len(wanted) for wanted in targets]), np.float64)


def reciprocal_rank(hit: npt.NDArray[np.bool_]) -> PerQuestion:
    """1 / the place of the first target, float64 [E]; 0 where none is found."""
    return np.where(hit.any(axis=1), 1 / (hit.argmax(axis=1) + 1.0), 0.0)
