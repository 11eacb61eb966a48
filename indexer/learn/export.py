"""The ranker as ONNX, checked against its Python original before anyone may serve it."""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from indexer.contract.features import FEATURES, Floats
from indexer.contract.manifest import RankerSpec, TensorSpec
from indexer.errors import GateFailed
from indexer.learn.ranker import LinearRanker

PARITY = 1e-5
"""The largest difference of scores between ONNX and torch."""
_INPUT = "features"
_OUTPUT = "scores"


def export_onnx(ranker: LinearRanker, path: Path, *, depth: int) -> RankerSpec:
    """Writes features [batch, candidates, F] -> scores [batch, candidates], both float32; batch and candidates vary."""
    batch, candidates = torch.export.Dim("batch"), torch.export.Dim("candidates")
    with _quiet():
        program = torch.onnx.export(
            ranker.eval(),
            (torch.zeros(2, 3, len(FEATURES)),),
            input_names=[_INPUT],
            output_names=[_OUTPUT],
            dynamic_shapes={_INPUT: {0: batch, 1: candidates}},
            dynamo=True,
            verbose=False,
        )
    content = _bare(_whole(program).model_proto)
    path.write_bytes(content)
    features = TensorSpec(name=_INPUT, dtype="float32", shape=("batch", "candidates", len(FEATURES)), columns=FEATURES)
    identity = f"linear-{hashlib.blake2b(content, digest_size=6).hexdigest()}"
    return RankerSpec(id=identity, kind="linear", depth=depth, inputs=(features,), output=_OUTPUT)


def _whole(program: torch.onnx.ONNXProgram | None) -> torch.onnx.ONNXProgram:
    if program is None:  # only of the exporter that is not asked
        raise TypeError("torch.onnx.export gave no program")
    return program


def _bare(model: onnx.ModelProto) -> bytes:
    """The model without what the exporter noted beside it: file names and stack traces of this machine."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return model.SerializeToString(deterministic=True)


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


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own use of torch, and that torchvision is absent; neither is this job's matter."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        registration.setLevel(level)
