"""A ranker as an ONNX model: what it declares, its bytes, and whether it scores as its original does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from indexer.contract.candidates import CANDIDATE_MASK, FEATURES, INPUTS, OUTPUT
from indexer.contract.manifest import TensorSpec
from indexer.contract.towers import TYPES
from indexer.errors import GateFailed
from indexer.learn.onnx_file import cpu_session, onnx_bytes
from indexer.learn.target_attention import ListRanker

PARITY = 1e-4
"""The largest difference of a score between ONNX and torch, relative to the score where that is above 1."""
_SHAPES = ((1, 50, 1), (1, 50, 50), (3, 7, 4), (32, 50, 20))


def declared(dimension: int, *, listwise: bool = False) -> tuple[TensorSpec, ...]:
    """What the manifest says of a ranker's inputs; a listwise one is told which candidates are padding."""
    specs = (
        TensorSpec(name="features", dtype="float32", shape=("batch", "candidates", len(FEATURES)), columns=FEATURES),
        TensorSpec(name="candidate_vectors", dtype="float32", shape=("batch", "candidates", dimension)),
        TensorSpec(name="context_vectors", dtype="float32", shape=("batch", "context", dimension)),
        TensorSpec(name="context_types", dtype="int64", shape=("batch", "context")),
        TensorSpec(name="context_mask", dtype="bool", shape=("batch", "context")),
        TensorSpec(name=CANDIDATE_MASK, dtype="bool", shape=("batch", "candidates")),
    )
    return specs if listwise else specs[: len(INPUTS)]


def ranker_bytes(module: ListRanker, dimension: int) -> bytes:
    """An ONNX model: what is `declared`, at most `module.places` events -> scores float32 [batch, candidates]."""
    dims = {"batch": torch.export.Dim("batch"), "candidates": torch.export.Dim("candidates")}
    dims["context"] = torch.export.Dim("context", max=module.places)
    sizes = {"batch": 2, "candidates": 3, "context": 4}
    kinds = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}
    specs = declared(dimension, listwise=module.listwise)
    example = tuple(
        torch.ones([sizes[each] if isinstance(each, str) else each for each in spec.shape], dtype=kinds[spec.dtype])
        for spec in specs
    )
    shapes = {
        spec.name: {at: dims[each] for at, each in enumerate(spec.shape) if isinstance(each, str)} for spec in specs
    }
    return onnx_bytes(module, example, [spec.name for spec in specs], [OUTPUT], shapes)


def check_ranker(module: ListRanker, dimension: int, model: bytes, *, seed: int) -> float:
    """The largest difference of a score between ONNX and torch over several shapes, empty contexts and padded
    candidates among them.

    Raises GateFailed above PARITY, or when a score is not finite.
    """
    session = cpu_session(model, 1)
    random = np.random.default_rng(seed)
    worst = 0.0
    for size, candidates, wanted in _SHAPES:
        every = _made_up(random, module, dimension, (size, candidates, min(wanted, module.places)))
        inputs = {spec.name: every[spec.name] for spec in declared(dimension, listwise=module.listwise)}
        (ours,) = session.run([OUTPUT], inputs)
        with torch.inference_mode():
            theirs = module(*(torch.from_numpy(each) for each in inputs.values())).numpy()
        if not np.isfinite(ours).all():
            raise GateFailed("no_nan: the ranker gave a score that is not finite")
        worst = max(worst, float((np.abs(ours - theirs) / np.maximum(1.0, np.abs(theirs))).max()))
    if worst > PARITY:
        raise GateFailed(f"parity: scores of ONNX and torch differ by {worst:.2g}, at most {PARITY:g} is allowed")
    return worst


def _made_up(
    random: np.random.Generator, module: ListRanker, dimension: int, shape: tuple[int, int, int]
) -> dict[str, npt.NDArray[np.generic]]:
    size, candidates, context = shape
    mean, scale = module.standard.mean.numpy(), module.standard.scale.numpy()
    features = mean + scale * random.standard_normal((size, candidates, len(FEATURES)))
    return {
        "features": features.astype(np.float32),
        "candidate_vectors": random.standard_normal((size, candidates, dimension)).astype(np.float32),
        "context_vectors": random.standard_normal((size, context, dimension)).astype(np.float32),
        "context_types": random.integers(0, TYPES, (size, context)),
        "context_mask": np.arange(context) < random.integers(0, context, size, endpoint=True)[:, None],
        CANDIDATE_MASK: np.arange(candidates) < random.integers(1, candidates, size, endpoint=True)[:, None],
    }
