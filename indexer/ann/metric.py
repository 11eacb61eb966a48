"""The space in which lists and codes are made: an error in it is what a typical query would notice of it.

A code, or a list's centroid, stands for a vector with an error e, and a query q notices (q e)^2 of it: over all queries
e' M e, with M = E[q q'] their second moment. With M = L L' a vector x becomes L' x and a query inv(L) q: inner products
stay what they were, k-means and codes now make least what the scores lose, and queries look into every direction alike.
Session vectors lie in few directions, far from most items: measured in docs/decisions/0010.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indexer.contract.features import Floats

_EVEN = 0.1
"""Added to M, whose mean variance is 1: no direction is given up, and what queries look like may change a little."""


@dataclass(frozen=True, slots=True)
class QueryMetric:
    """Both float32 [d, d]: a row of items times `items`, and `queries` times a query."""

    items: Floats
    queries: Floats

    @classmethod
    def of(cls, typical: Floats, dimension: int) -> QueryMetric:
        """Of queries float32 [q, d]; the fewer they are, the less they weigh, and without any the space is as it is."""
        eye = np.eye(dimension)
        if not np.any(typical):
            return cls(eye.astype(np.float32), eye.astype(np.float32))
        moment = typical.T.astype(np.float64) @ typical
        moment *= dimension / np.trace(moment)
        lower = np.linalg.cholesky(moment + (_EVEN + dimension / len(typical)) * eye)
        return cls(lower.astype(np.float32), np.linalg.inv(lower).astype(np.float32))

    def moved(self, vectors: Floats) -> Floats:
        """float32 [c, d] of items float32 [c, d]."""
        return np.ascontiguousarray(vectors @ self.items)
