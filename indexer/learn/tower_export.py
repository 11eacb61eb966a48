"""Trained towers as files: item vectors in a stream, the session tower as ONNX, checked against its original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch

from indexer.contract.towers import INPUTS, OUTPUT, TYPES
from indexer.errors import GateFailed
from indexer.learn.onnx_file import onnx_bytes
from indexer.learn.tower_training import Towers
from indexer.learn.towers import DIMENSION, SessionTower
from indexer.rows_file import rows_file

Vectors = npt.NDArray[np.float16]

PARITY = 1e-4
"""The largest difference of a session vector's numbers between ONNX and torch, relative to the vector's length."""
_CHUNK = 16_384
_SHAPES = ((1, 1), (1, 50), (3, 7), (32, 20))


def write_item_vectors(
    towers: Towers,
    content: Vectors,
    target: Path,
    advance: Callable[[int], None] = lambda done: None,
    *,
    chunk: int = _CHUNK,
) -> None:
    """Writes float16 [n, d] to a .npy file, chunk by chunk, from content float16 [n, D], which may be memory-mapped.

    Not of length 1: the length says how much is sold, and inner products rank. Raises GateFailed when a number is not
    finite in float16.
    """
    with rows_file(target, np.float16, (len(content), DIMENSION)) as append:
        for first in range(0, len(content), chunk):
            stop = min(first + chunk, len(content))
            vectors = item_vectors(towers, content[first:stop], first)
            if not np.isfinite(vectors).all():
                raise GateFailed(f"no_nan: an item vector of the rows {first}..{stop - 1} is not finite in float16")
            append(vectors)
            advance(stop - first)


def item_vectors(towers: Towers, content: Vectors, first: int) -> Vectors:
    """float16 [c, d] of the items `first`, `first + 1`, ... with content vectors float16 [c, D]."""
    slots = torch.from_numpy(towers.slots[first : first + len(content)])
    with torch.inference_mode():
        vectors = towers.item(torch.from_numpy(content.astype(np.float32)), slots)
    return np.asarray(vectors.numpy(), np.float16)


def export_session_tower(tower: SessionTower, path: Path) -> None:
    """Writes the inputs of `contract.towers.INPUTS` -> session_vectors float32 [batch, d]; batch and context vary.

    A context longer than the tower has places is an error of the caller.
    """
    batch, context = torch.export.Dim("batch"), torch.export.Dim("context", max=len(tower.position))
    example = (torch.zeros(2, 3, DIMENSION), torch.zeros(2, 3, dtype=torch.int64), torch.ones(2, 3, dtype=torch.bool))
    shapes = {name: {0: batch, 1: context} for name in INPUTS}
    path.write_bytes(onnx_bytes(tower, example, list(INPUTS), [OUTPUT], shapes))


def check_parity(tower: SessionTower, path: Path, *, seed: int) -> float:
    """The largest difference between ONNX and torch, relative to the vector's length, over several shapes.

    Empty contexts are among them. Raises GateFailed above PARITY, or when a number is not finite.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    worst = 0.0
    for size, wanted in _SHAPES:
        places = min(wanted, len(tower.position))
        lengths = random.integers(0, places, size, endpoint=True)
        inputs = {
            "item_vectors": random.standard_normal((size, places, DIMENSION)).astype(np.float32),
            "types": random.integers(0, TYPES, (size, places)),
            "mask": np.arange(places) < lengths[:, None],
        }
        (ours,) = session.run([OUTPUT], inputs)
        with torch.inference_mode():
            theirs = tower(*(torch.from_numpy(inputs[name]) for name in INPUTS)).numpy()
        if not np.isfinite(ours).all():
            raise GateFailed("no_nan: the session tower gave a vector that is not finite")
        length = np.maximum(1.0, np.linalg.norm(theirs, axis=1, keepdims=True))
        worst = max(worst, float((np.abs(ours - theirs) / length).max()))
    if worst > PARITY:
        raise GateFailed(
            f"parity: session vectors of ONNX and torch differ by {worst:.2g}, at most {PARITY:g} is allowed"
        )
    return worst
