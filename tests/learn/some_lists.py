"""Made-up lists whose best order is known to the features, but not to the blend."""

from __future__ import annotations

import numpy as np

from indexer.contract.candidates import FEATURES
from indexer.learn.lists import Lists

CANDIDATES, PLACES, DIMENSION = 20, 6, 8


def make_some_lists(count: int, *, seed: int) -> Lists:
    """Positive are the candidates that were bought often and are like the newest event; some lists are short."""
    random = np.random.default_rng(seed)
    features = random.standard_normal((count, CANDIDATES, len(FEATURES))).astype(np.float32)
    vectors = random.standard_normal((count, CANDIDATES, DIMENSION)).astype(np.float16)
    context = random.standard_normal((count, PLACES, DIMENSION)).astype(np.float16)
    mask = np.arange(PLACES) < random.integers(0, PLACES, count, endpoint=True)[:, None]
    context[~mask] = 0
    present = np.arange(CANDIDATES) < random.integers(12, CANDIDATES, count, endpoint=True)[:, None]
    features[~present] = 0
    vectors[~present] = 0
    wide, newest = vectors.astype(np.float32), context[:, 0].astype(np.float32)
    lengths = np.linalg.norm(wide, axis=2) * np.linalg.norm(newest, axis=1)[:, None]
    like = np.einsum("qcd,qd->qc", wide, newest) / np.maximum(lengths, 1e-6)
    worth = features[:, :, FEATURES.index("times")] + 2 * like
    positive = (worth > 1.5) & present
    return Lists(
        features=features,
        rows=np.where(present, random.integers(0, 1000, present.shape), -1).astype(np.int32),
        present=present,
        positive=positive,
        targets=positive.sum(axis=1) + 1,
        users=random.integers(0, count // 3, count).astype(np.int32),
        candidate_vectors=vectors,
        context_vectors=context,
        context_types=np.where(mask, 5, 0).astype(np.int64),
        context_mask=mask,
        context_rows=np.where(mask, random.integers(0, 1000, mask.shape), -1).astype(np.int32),
    )
