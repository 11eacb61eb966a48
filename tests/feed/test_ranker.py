from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidProtobuf

from indexer.contract.candidates import FEATURES
from indexer.contract.features import Floats
from indexer.contract.manifest import RankerSpec
from services.feed.ranker import Ranker
from tests.properties import examples
from tests.snapshots import FEATURES_INPUT, WEIGHTS, linear_ranker

BY_COLUMN = np.array([WEIGHTS.get(name, 0.0) for name in FEATURES], np.float32)
SPEC = RankerSpec(id="linear", kind="linear", inputs=(FEATURES_INPUT,), output="scores")


def load(folder: Path, model: bytes, spec: RankerSpec = SPEC) -> Ranker:
    (folder / "ranker.onnx").write_bytes(model)
    return Ranker.load(folder / "ranker.onnx", spec, threads=1)


def features(*sizes: int, seed: int = 1) -> list[Floats]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size, len(FEATURES))).astype(np.float32) for size in sizes]


def scored(ranker: Ranker, blocks: list[Floats]) -> list[Floats]:
    """Scores of the blocks, padded as `ranker_tensors` pads them, beside a tensor that the model did not ask for."""
    sizes = [len(block) for block in blocks]
    padded = np.zeros((len(blocks), max(sizes), len(FEATURES)), np.float32)
    for at, block in enumerate(blocks):
        padded[at, : len(block)] = block
    return ranker.score({"features": padded, "context_mask": np.ones((1, 1), np.bool_)}, sizes)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return load(tmp_path_factory.mktemp("ranker"), linear_ranker(WEIGHTS))


@examples(60)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=16))
def test_a_batch_is_scored_as_each_question_alone(ranker: Ranker, sizes: list[int]) -> None:
    blocks = features(*sizes)
    together = scored(ranker, blocks)
    assert [len(scores) for scores in together] == sizes
    for block, scores in zip(blocks, together, strict=True):
        assert scores.dtype == np.float32
        assert scores == pytest.approx(block @ BY_COLUMN, abs=1e-5)
        assert scores == pytest.approx(scored(ranker, [block])[0], abs=1e-6)


def test_a_question_without_candidates_has_no_scores(ranker: Ranker) -> None:
    assert [scores.tolist() for scores in scored(ranker, features(0, 0))] == [[], []]


def test_scores_that_are_not_finite_are_refused(ranker: Ranker) -> None:
    (block,) = features(3)
    block[1, 0] = np.inf
    with pytest.raises(ValueError, match="ranker linear answered a score that is not finite"):
        scored(ranker, [block])


def summing(keepdims: int) -> bytes:
    """A model of one score a question, whatever its candidates."""
    shape: list[str | int | None] = ["batch", "candidates", len(FEATURES)]
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["features", "axes"], ["scores"], keepdims=keepdims)],
        "summing",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return bytes(model.SerializeToString())


def test_an_answer_of_another_shape_is_refused(tmp_path: Path) -> None:
    ranker = load(tmp_path, summing(keepdims=0))
    with pytest.raises(ValueError, match=r"ranker linear answered the shape \(2, \d+\), not \(2, 3\)"):
        scored(ranker, features(3, 1))


@pytest.mark.parametrize(
    "spec",
    [
        SPEC.model_copy(update={"output": "logits"}),
        SPEC.model_copy(update={"inputs": (FEATURES_INPUT.model_copy(update={"name": "context_mask"}),)}),
        SPEC.model_copy(
            update={"inputs": (FEATURES_INPUT, FEATURES_INPUT.model_copy(update={"name": "context_mask"}))}
        ),
        SPEC.model_copy(update={"inputs": ()}),
    ],
)
def test_a_model_that_is_not_what_the_manifest_declares_is_refused(tmp_path: Path, spec: RankerSpec) -> None:
    has = r"ranker linear has inputs \['features'\] and outputs \['scores'\]"
    with pytest.raises(ValueError, match=f"{has}; the manifest declares"):
        load(tmp_path, linear_ranker(WEIGHTS), spec)


@pytest.mark.parametrize("change", [{"name": "basket"}, {"columns": FEATURES[1:]}])
def test_an_input_that_this_version_cannot_make_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    spec = SPEC.model_copy(update={"inputs": (FEATURES_INPUT.model_copy(update=change),)})
    with pytest.raises(ValueError, match="is not known to this version"):
        load(tmp_path, linear_ranker(WEIGHTS), spec)


@pytest.mark.parametrize("model", [b"", b"garbage", linear_ranker(WEIGHTS)[:-9]])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, model: bytes) -> None:
    with pytest.raises((InvalidProtobuf, InvalidArgument)):
        load(tmp_path, model)


@pytest.mark.parametrize("columns", [5, len(FEATURES), 5000])
def test_weights_outside_the_file_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """No ONNX external data: the checksum of the file would not cover it. (onnxruntime looks for it in the working
    directory, unless it is told not to; above 127 bytes it finds it.)"""
    monkeypatch.chdir(tmp_path)
    weights = np.ones(columns, np.float32)
    model = onnx.load_from_string(linear_ranker(WEIGHTS))
    held = model.graph.initializer[0]
    held.CopyFrom(numpy_helper.from_array(weights, held.name))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_value = columns
    (tmp_path / "outside.bin").write_bytes(held.raw_data)
    onnx.external_data_helper.set_external_data(held, "outside.bin")
    held.ClearField("raw_data")
    with pytest.raises(Fail, match="External data path validation failed"):
        load(tmp_path, model.SerializeToString())
