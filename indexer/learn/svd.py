"""Where item embeddings begin: a truncated SVD of the positive pointwise mutual information of items in sessions.

Levy, Goldberg and Dagan, "Improving distributional similarity with lessons learned from word embeddings" (2015):
context counts smoothed by the power 0.75, vectors = U * sqrt(S). The SVD is randomised (Halko, Martinsson
and Tropp, 2011).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

Floats = npt.NDArray[np.float32]
Csr: TypeAlias = sparse.csr_matrix

_SMOOTHING = 0.75
_OVERSAMPLING = 16
_ITERATIONS = 3


def ppmi(sessions: Csr) -> Csr:
    """PPMI of items that share a session, float32 CSR [m, m], for `sessions` float32 CSR [S, m] of ones.

    A pair in a session of l items counts 1 / (l - 1), so that every item of every session weighs the same. Memory
    grows with the distinct pairs, at most the squared lengths of all sessions: `indexer.neighbours.paired` bounds it.
    """
    size = np.diff(sessions.indptr)
    shared = sparse.diags_array((1 / np.maximum(1, size - 1)).astype(np.float32))
    met = sparse.csr_matrix(sessions.T.tocsr() @ sparse.csr_matrix(shared @ sessions))
    met.setdiag(0)
    met.eliminate_zeros()
    marginal = np.asarray(met.sum(axis=1, dtype=np.float64)).ravel()
    smoothed = marginal**_SMOOTHING
    smoothed /= max(smoothed.sum(), 1e-12)
    np.log(met.data, out=met.data)
    met.data -= np.repeat(_log(marginal), np.diff(met.indptr))
    met.data -= _log(smoothed)[met.indices]
    np.maximum(met.data, 0, out=met.data)
    met.eliminate_zeros()
    return met


def embed(matrix: Csr, dimension: int, *, seed: int, threads: int = 1) -> Floats:
    """float32 [m, dimension] = U * sqrt(S) of the truncated SVD of float32 CSR [m, m]; zeros beyond its rank.

    The threads share the columns of the dense side.
    """
    wide = min(dimension + _OVERSAMPLING, *matrix.shape)
    probe = np.random.default_rng(seed).standard_normal((matrix.shape[1], wide), np.float32)
    turned = matrix.T
    with ThreadPoolExecutor(threads) as pool:

        def times(sparse_side: Csr | sparse.csc_matrix, dense: Floats) -> Floats:
            columns = map(np.ascontiguousarray, np.array_split(dense, threads, axis=1))
            return np.hstack(list(pool.map(lambda part: sparse_side @ part, columns)))

        basis = _orthonormal(times(matrix, probe))
        for _ in range(_ITERATIONS):
            basis = _orthonormal(times(turned, basis))
            basis = _orthonormal(times(matrix, basis))
        projected = torch.linalg.qr(torch.from_numpy(times(turned, basis)), mode="r").R.numpy()
    left, strength, _ = np.linalg.svd(projected.T, full_matrices=False)
    kept = min(dimension, len(strength))
    out = np.zeros((matrix.shape[0], dimension), np.float32)
    out[:, :kept] = (basis @ left[:, :kept]) * np.sqrt(strength[:kept])
    return out


def _orthonormal(columns: Floats) -> Floats:
    return np.asarray(torch.linalg.qr(torch.from_numpy(columns)).Q.numpy(), np.float32)


def _log(numbers: npt.NDArray[np.float64]) -> Floats:
    return np.log(np.maximum(numbers, 1e-12)).astype(np.float32)
