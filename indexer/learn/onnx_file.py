"""A torch module as the bytes of an ONNX model: the same bytes for the same weights, nothing of this machine."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torch.export import Dim


def onnx_bytes(
    module: nn.Module,
    example: tuple[Tensor, ...],
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, Dim]],
) -> bytes:
    """Exports `module.forward(*example)`; `dynamic`: by input, which of its dimensions vary. Batch sizes of the example
    must be above 1, since 1 is taken for a constant."""
    with _quiet():
        program = torch.onnx.export(
            module.eval(),
            example,
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=tuple(dict(dynamic.get(name, {})) for name in inputs),
            dynamo=True,
            verbose=False,
        )
    if program is None:  # only of the exporter that is not asked
        raise TypeError("torch.onnx.export gave no program")
    return bare(program.model_proto)


def bare(model: onnx.ModelProto) -> bytes:
    """The model without what its makers noted beside it: file names and stack traces of this machine."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    return model.SerializeToString(deterministic=True)


def cpu_session(model: bytes, threads: int) -> onnxruntime.InferenceSession:
    """An ONNX Runtime session on the CPU, with so many threads, that does not spin."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of its own use of torch, of names of equal dimensions, and that torchvision is absent."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", message="# The axis name")
            yield
    finally:
        registration.setLevel(level)
