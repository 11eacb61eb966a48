"""ONNX models in fewer bits, behind the same inputs and outputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.quant_utils import add_pre_process_metadata
from onnxruntime.transformers.float16 import convert_float_to_float16

from indexer.learn.onnx_file import bare

Inputs = Mapping[str, npt.NDArray[np.generic]]


def half(model: bytes) -> bytes:
    """Weights and arithmetic in float16, inputs and outputs as they are; constants too small for it are raised."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*will be truncated", category=UserWarning)
        return bare(convert_float_to_float16(onnx.load_from_string(model), keep_io_types=True))


def int8(model: bytes, batches: Iterable[Inputs]) -> bytes:
    """Linear layers in int8: weights by output channel, activations uint8 with ranges fixed by `batches`.

    Fixed ranges keep a question's scores independent of the questions beside it. Weights take 7 of the 8 bits, so that
    sums of two products stay within 16 bits and a CPU without VNNI gives the same scores (microsoft/onnxruntime#6004).
    """
    proto = onnx.load_from_string(model)
    layers = linear_layers(proto.graph)
    add_pre_process_metadata(proto)  # there is nothing to prepare, and without the mark a warning is logged
    with TemporaryDirectory() as folder:
        target = Path(folder) / "int8.onnx"
        quantize_static(
            proto,
            target,
            _Reader(batches),
            quant_format=QuantFormat.QDQ,
            nodes_to_quantize=layers,
            per_channel=True,
            reduce_range=True,
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QUInt8,
        )
        return bare(onnx.load(target))


def int8_by_batch(model: bytes) -> bytes:
    """Linear layers in int8, weights by output channel in 7 bits, with activation ranges found anew for each batch."""
    proto = onnx.load_from_string(model)
    layers = linear_layers(proto.graph)
    add_pre_process_metadata(proto)
    with TemporaryDirectory() as folder:
        target = Path(folder) / "int8.onnx"
        quantize_dynamic(
            proto, target, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8, nodes_to_quantize=layers
        )
        return bare(onnx.load(target))


def linear_layers(graph: onnx.GraphProto) -> list[str]:
    """The names of the products with weights."""
    weights = {each.name for each in graph.initializer if len(each.dims) == 2}
    return [node.name for node in graph.node if node.op_type in {"MatMul", "Gemm"} and node.input[1] in weights]


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    def __init__(self, batches: Iterable[Inputs]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> dict[str, npt.NDArray[np.generic]] | None:
        batch = next(self._batches, None)
        return None if batch is None else dict(batch)
