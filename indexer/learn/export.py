"""The ranker as ONNX, checked against its Python original before anyone may serve it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch

from indexer.contract.features import FEATURES, Floats
from indexer.contract.manifest import RankerSpec, TensorSpec
from indexer.errors import GateFailed
from indexer.learn.onnx_file import onnx_bytes
from indexer.learn.ranker import LinearRanker

PARITY = 1e-5
"""The largest difference of scores between ONNX and torch."""
_INPUT = "features"
_OUTPUT = "scores"


def export_onnx(ranker: LinearRanker, path: Path, *, depth: int) -> RankerSpec:
    """Writes features [batch, candidates, F] -> scores [batch, candidates], both float32; batch and candidates vary."""
    batch, candidates = torch.export.Dim("batch"), torch.export.Dim("candidates")
    content = onnx_bytes(
        ranker,
        (torch.zeros(2, 3, len(FEATURES)),),
        inputs=[_INPUT],
        outputs=[_OUTPUT],
        dynamic={_INPUT: {0: batch, 1: candidates}},
    )
    path.write_bytes(content)
    features = TensorSpec(name=_INPUT, dtype="float32", shape=("batch", "candidates", len(FEATURES)), columns=FEATURES)
    identity = f"linear-{hashlib.blake2b(content, digest_size=6).hexdigest()}"
    return RankerSpec(id=identity, kind="linear", depth=depth, inputs=(features,), output=_OUTPUT)


class OnnxRanker:
    """The exported ranker, run as the service runs it: one thread, no spinning."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])

    def score(self, features: Floats) -> Floats:
        """float32 [batch, candidates] of float32 [batch, candidates, F]."""
        (scores,) = self._session.run([_OUTPUT], {_INPUT: features})
        return np.asarray(scores, np.float32)


def check_parity(ranker: LinearRanker, exported: OnnxRanker, real: Sequence[Floats], seed: int) -> float:
    """The largest difference on random inputs of several shapes and on `real` ones [C, F].

    Raises GateFailed when it is above 1e-5, or when a score is not finite.
    """
    random = np.random.default_rng(seed)
    shapes = [(1, 1), (1, 50), (7, 50), (3, 500)]
    inputs = [random.random((*shape, len(FEATURES)), np.float32) for shape in shapes]
    inputs += [block[None] for block in real if len(block)]
    worst = 0.0
    with torch.inference_mode():
        for block in inputs:
            scores = exported.score(block)
            if not np.isfinite(scores).all():
                raise GateFailed("no_nan: the ranker gave a score that is NaN or infinite")
            worst = max(worst, float(np.abs(ranker(torch.from_numpy(block)).numpy() - scores).max()))
    if worst > PARITY:
        raise GateFailed(f"parity: ONNX and torch scores differ by {worst:.2g}, at most {PARITY:g} is allowed")
    return worst
