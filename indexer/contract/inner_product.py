"""Inner-product search among vectors of unlike lengths: with one more number all are equally long.

x becomes (x, sqrt(M^2 - |x|^2), 0, ..), M the length of the longest, and a query (q, 0, ..): inner products stay what
they were, and lists of like direction hold them again (Bachrach et al., Speeding Up the Xbox Recommender System, 2014).
Without it an index of lists must look into nearly all of them, since the long vectors stand near every query.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_STEP = 16
"""FAISS scores codes of so many numbers at a time fastest."""


def width_of(dimension: int) -> int:
    """Numbers of a widened vector of d numbers."""
    return (dimension // _STEP + 1) * _STEP


def widened(vectors: Floats, longest: float) -> Floats:
    """float32 [c, width] of float32 [c, d], none longer than `longest`."""
    out = np.zeros((len(vectors), width_of(vectors.shape[1])), np.float32)
    out[:, : vectors.shape[1]] = vectors
    out[:, vectors.shape[1]] = np.sqrt(np.maximum(0.0, longest**2 - np.square(vectors, dtype=np.float32).sum(axis=1)))
    return out


def as_wide(queries: Floats, width: int) -> Floats:
    """float32 [q, width]: the queries float32 [q, d], followed by zeros; themselves when they are so wide."""
    if queries.shape[1] == width:
        return queries
    out = np.zeros((len(queries), width), np.float32)
    out[:, : queries.shape[1]] = queries
    return out
