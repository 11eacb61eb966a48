"""Session vectors: what a context looks for, to be multiplied with item vectors. By the tower, or by the mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.contract.features import Context, Floats, query_vector
from indexer.contract.manifest import QuerySpec
from indexer.contract.towers import INPUTS, OUTPUT, tower_inputs
from services.feed.onnx_model import names, open_model

Encode = Callable[[Sequence[Context]], Floats]
"""Session vectors float32 [B, d] of B contexts of at most QuerySpec.places events, all finite; 0 where there is none.
Raises ValueError when one is not finite or of another shape, and what ONNX Runtime raises."""


def by_mean(vectors: npt.NDArray[np.float16], spec: QuerySpec) -> Encode:
    """The recency-weighted mean of item vectors float16 [n, d]; all 0 for an empty context."""

    def encode(contexts: Sequence[Context]) -> Floats:
        return _finite(np.stack([query_vector(vectors, context, spec) for context in contexts]), len(contexts), vectors)

    return encode


def by_tower(path: Path, vectors: npt.NDArray[np.float16], threads: int, cuda: int | None = None) -> Encode:
    """The session tower in the file at `path`, see `open_model`; one run a batch. Raises ValueError when it is none."""
    session = open_model(path, threads, cuda)
    inputs, outputs = names(session)
    if inputs != set(INPUTS) or OUTPUT not in outputs:
        given = f"has inputs {sorted(inputs)} and outputs {sorted(outputs)}"
        raise ValueError(f"{path.name}: {given}, expected {sorted(INPUTS)} and {OUTPUT!r}")

    def encode(contexts: Sequence[Context]) -> Floats:
        (found,) = session.run([OUTPUT], tower_inputs(vectors, list(contexts)))
        return _finite(np.asarray(found), len(contexts), vectors)

    return encode


def _finite(found: npt.NDArray[np.generic], count: int, vectors: npt.NDArray[np.float16]) -> Floats:
    expected = (count, vectors.shape[1])
    if found.shape != expected or found.dtype != np.float32:
        raise ValueError(f"session vectors are {found.dtype} {found.shape}, expected float32 {expected}")
    if not np.isfinite(found).all():
        raise ValueError("a session vector is not finite")
    return np.asarray(found, np.float32)
