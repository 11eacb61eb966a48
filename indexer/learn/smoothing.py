"""Outliers of activations moved into the weights, so that both fit into eight bits: SmoothQuant, arXiv 2211.10438."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from indexer.learn.onnx_file import bare, cpu_session
from indexer.learn.quantise import linear_layers

Floats = npt.NDArray[np.float32]
_STRENGTH = 0.6
"""Share of an input channel's range that goes into the weights (the paper's alpha); of 0.5 to 0.9, this and 0.65 gave
MiniLM's vectors the highest least cosine to those in fp32."""
_LEAST = 1e-5


def smoothed(model: bytes, batches: Sequence[Mapping[str, npt.NDArray[np.generic]]]) -> bytes:
    """The same function: before each linear layer every input channel is divided by a factor that its weights are
    multiplied by. Factors are (largest input)^a / (largest weight)^(1-a) by channel, over the `batches`."""
    proto = onnx.load_from_string(model)
    graph = proto.graph
    nodes = {each.name: each for each in graph.node}
    weights = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
    layers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for name in linear_layers(graph):
        if nodes[name].op_type == "MatMul":
            layers[nodes[name].input[0]].append(nodes[name])
    largest = _largest(model, list(layers), batches)
    for source, users in layers.items():
        widest = np.max([np.abs(weights[user.input[1]]).max(axis=1) for user in users], axis=0)
        factors = np.maximum(largest[source], _LEAST) ** _STRENGTH / np.maximum(widest, _LEAST) ** (1 - _STRENGTH)
        factors = (factors / factors.mean()).astype(np.float32)
        _put(proto, source, users, factors, weights)
    used = {name for node in graph.node for name in node.input}
    kept = [each for each in graph.initializer if each.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    return bare(proto)


def _largest(
    model: bytes, sources: Sequence[str], batches: Sequence[Mapping[str, npt.NDArray[np.generic]]]
) -> dict[str, Floats]:
    """float32 [channels] of each source: its largest absolute values."""
    proto = onnx.load_from_string(model)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sources)
    session = cpu_session(proto.SerializeToString(), 1)
    names = [each.name for each in session.get_inputs()]
    largest: dict[str, Floats] = {}
    for batch in batches:
        for source, found in zip(sources, session.run(sources, {name: batch[name] for name in names}), strict=True):
            values = np.abs(found).reshape(-1, found.shape[-1]).max(axis=0)
            largest[source] = np.maximum(largest.get(source, 0), values)
    return largest


def _put(
    proto: onnx.ModelProto, source: str, users: Sequence[onnx.NodeProto], factors: Floats, weights: Mapping[str, Floats]
) -> None:
    graph = proto.graph
    first = min(at for at, node in enumerate(graph.node) if node in users)
    graph.initializer.append(numpy_helper.from_array(np.float32(1) / factors, f"{source}_factors"))
    divided = helper.make_node("Mul", [source, f"{source}_factors"], [f"{source}_smooth"], name=f"{source}_smoothing")
    graph.node.insert(first, divided)
    for user in users:
        name = f"{user.name}_smooth_weight"
        graph.initializer.append(numpy_helper.from_array(weights[user.input[1]] * factors[:, None], name))
        user.input[0], user.input[1] = divided.output[0], name
