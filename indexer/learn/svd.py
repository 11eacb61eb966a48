"""Where item embeddings begin: a truncated SVD of the positive pointwise mutual information of items in sessions.

Levy, Goldberg and Dagan, "Improving distributional similarity with lessons learned from word embeddings" (2015):
context counts smoothed by the power 0.75, vectors = U * sqrt(S). The SVD is randomised (Halko, Martinsson
and Tropp, 2011).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import sparse

Floats = npt.NDArray[np.float32]
Csr: TypeAlias = sparse.csr_matrix

_SMOOTHING = 0.75
_OVERSAMPLING = 16
_ITERATIONS = 3


def ppmi(sessions: Csr, *, longest: int, least: int) -> Csr:
    """PPMI of items that share a session, float32 CSR [m, m], for `sessions` float32 CSR [S, m] of ones.

    Sessions with more than `longest` items count no pairs, nor do pairs that met fewer than `least` times.
    A pair in a session of l items counts 1 / (l - 1), so that every item of every session weighs the same.
    """
    lengths = np.diff(sessions.indptr)
    used = sessions[(lengths > 1) & (lengths <= longest)]
    size = np.diff(used.indptr)
    shared = sparse.diags_array((1 / (size - 1)).astype(np.float32))
    met = sparse.csr_matrix(used.T @ (shared @ used), dtype=np.float32)
    if least > 1:
        met = met.multiply((used.T @ used) >= least).tocsr()
    met.setdiag(0)
    met.eliminate_zeros()
    marginal = np.asarray(met.sum(axis=1), np.float64).ravel()
    smoothed = marginal**_SMOOTHING
    smoothed /= max(smoothed.sum(), 1e-12)
    rows = np.repeat(np.arange(met.shape[0]), np.diff(met.indptr))
    information = np.log(met.data / (np.maximum(marginal[rows], 1e-12) * smoothed[met.indices]))
    met.data = np.maximum(information, 0).astype(np.float32)
    met.eliminate_zeros()
    return met


def embed(matrix: Csr, dimension: int, *, seed: int) -> Floats:
    """float32 [m, dimension] = U * sqrt(S) of the truncated SVD of float32 CSR [m, m]; zeros beyond its rank."""
    wide = min(dimension + _OVERSAMPLING, *matrix.shape)
    probe = np.random.default_rng(seed).standard_normal((matrix.shape[1], wide), np.float32)
    basis = np.linalg.qr(matrix @ probe).Q
    for _ in range(_ITERATIONS):
        basis = np.linalg.qr(matrix.T @ basis).Q
        basis = np.linalg.qr(matrix @ basis).Q
    left, strength, _ = np.linalg.svd((matrix.T @ basis).T, full_matrices=False)
    kept = min(dimension, len(strength))
    out = np.zeros((matrix.shape[0], dimension), np.float32)
    out[:, :kept] = (basis @ left[:, :kept]) * np.sqrt(strength[:kept])
    return out
