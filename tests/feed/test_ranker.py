from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument, InvalidProtobuf

from indexer.contract.features import FEATURES, Floats
from indexer.contract.manifest import RankerSpec, TensorSpec
from services.feed.ranker import Ranker
from tests.properties import examples
from tests.snapshots import linear_ranker

WEIGHTS = [1.0, 0.5, 2.0, 0.5, -0.1]
INPUT = TensorSpec(name="features", dtype="float32", shape=("batch", "candidates", 5), columns=FEATURES)
SPEC = RankerSpec(id="linear", kind="linear", inputs=(INPUT,), output="scores")


def load(folder: Path, model: bytes, spec: RankerSpec = SPEC) -> Ranker:
    (folder / "ranker.onnx").write_bytes(model)
    return Ranker.load(folder / "ranker.onnx", spec, threads=1)


def features(*sizes: int, seed: int = 1) -> list[Floats]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((size, len(FEATURES))).astype(np.float32) for size in sizes]


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return load(tmp_path_factory.mktemp("ranker"), linear_ranker(WEIGHTS))


@examples(60)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=16))
def test_a_batch_is_scored_as_each_question_alone(ranker: Ranker, sizes: list[int]) -> None:
    blocks = features(*sizes)
    together = ranker.score(blocks)
    assert [len(scores) for scores in together] == sizes
    for block, scores in zip(blocks, together, strict=True):
        assert scores.dtype == np.float32
        assert scores == pytest.approx(block @ np.array(WEIGHTS, np.float32), abs=1e-5)
        assert scores == pytest.approx(ranker.score([block])[0], abs=1e-6)


def test_a_question_without_candidates_has_no_scores(ranker: Ranker) -> None:
    assert [scores.tolist() for scores in ranker.score(features(0, 0))] == [[], []]


def test_scores_that_are_not_finite_are_refused(ranker: Ranker) -> None:
    (block,) = features(3)
    block[1, 0] = np.inf
    with pytest.raises(ValueError, match="ranker linear answered a score that is not finite"):
        ranker.score([block])


def summing(keepdims: int) -> bytes:
    """A model of one score a question, whatever its candidates."""
    shape: list[str | int | None] = ["batch", "candidates", 5]
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
    with pytest.raises(ValueError, match=r"ranker linear answered the shape \(2, 5\), not \(2, 3\)"):
        ranker.score(features(3, 1))


@pytest.mark.parametrize(
    "spec",
    [
        SPEC.model_copy(update={"output": "logits"}),
        SPEC.model_copy(update={"inputs": (INPUT.model_copy(update={"name": "candidates"}),)}),
        SPEC.model_copy(update={"inputs": (INPUT, INPUT.model_copy(update={"name": "history"}))}),
        SPEC.model_copy(update={"inputs": ()}),
    ],
)
def test_a_model_that_is_not_what_the_manifest_declares_is_refused(tmp_path: Path, spec: RankerSpec) -> None:
    has = r"ranker linear has inputs \['features'\] and outputs \['scores'\]"
    with pytest.raises(ValueError, match=f"{has}; the manifest declares"):
        load(tmp_path, linear_ranker(WEIGHTS), spec)


@pytest.mark.parametrize("model", [b"", b"garbage", linear_ranker(WEIGHTS)[:-9]])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, model: bytes) -> None:
    with pytest.raises((InvalidProtobuf, InvalidArgument)):
        load(tmp_path, model)


def test_weights_outside_the_file_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ONNX external data: the checksum of the file would not cover it."""
    monkeypatch.chdir(tmp_path)
    model = onnx.load_from_string(linear_ranker(WEIGHTS))
    weights = model.graph.initializer[0]
    weights.CopyFrom(numpy_helper.from_array(np.array(WEIGHTS, np.float32), weights.name))
    (tmp_path / "outside.bin").write_bytes(weights.raw_data)
    onnx.external_data_helper.set_external_data(weights, "outside.bin")
    weights.ClearField("raw_data")
    with pytest.raises(Fail, match="model_path must not be empty"):
        load(tmp_path, model.SerializeToString())
