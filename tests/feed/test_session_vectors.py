from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract.features import EMPTY, Context, query_vector
from indexer.contract.manifest import QuerySpec
from indexer.contract.towers import BEFORE
from services.feed.session_vectors import Encode, by_mean, by_tower
from tests.feed.shops import viewed_context
from tests.properties import examples
from tests.snapshots import WEIGHTS, linear_ranker, session_tower

COUNT, DIMENSION = 30, 6
VECTORS = np.random.default_rng(4).standard_normal((COUNT, DIMENSION)).astype(np.float16)
CONTEXTS = st.lists(st.lists(st.integers(0, COUNT - 1), max_size=9, unique=True), min_size=1, max_size=8)


def tower(folder: Path, model: bytes) -> Encode:
    (folder / "session_tower.onnx").write_bytes(model)
    return by_tower(folder / "session_tower.onnx", VECTORS, threads=1)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[Encode]:
    return [by_mean(VECTORS, QuerySpec()), tower(tmp_path_factory.mktemp("tower"), session_tower(DIMENSION, 1))]


@examples(60)
@given(CONTEXTS)
def test_a_batch_gives_each_context_the_vector_that_it_has_alone(both: list[Encode], rows: list[list[int]]) -> None:
    contexts = [viewed_context(*each) for each in rows]
    for encode in both:
        together = encode(contexts)
        assert together.shape == (len(rows), DIMENSION)
        assert together.dtype == np.float32
        for context, vector in zip(contexts, together, strict=True):
            np.testing.assert_allclose(vector, encode([context])[0], atol=1e-5)


def test_the_mean_is_that_of_the_contract_and_0_for_nobody(both: list[Encode]) -> None:
    context = viewed_context(3, 7)
    given_, nothing = both[0]([context, EMPTY])
    np.testing.assert_array_equal(given_, query_vector(VECTORS, context, QuerySpec()))
    assert not nothing.any()


def test_the_tower_has_a_vector_for_nobody_and_hears_the_types(both: list[Encode]) -> None:
    rows = np.array([3], np.int32)
    viewed, before = (Context(rows, np.array([kind], np.uint8)) for kind in (2, BEFORE))
    vectors = both[1]([EMPTY, viewed, before])
    assert vectors[0].any()
    assert not np.allclose(vectors[1], vectors[2])


def test_vectors_of_another_dimension_are_refused(tmp_path: Path) -> None:
    free = onnx.load_from_string(session_tower(DIMENSION + 1, 1))
    free.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "d"
    free.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(np.zeros(1, np.float32), "constant"))
    free.graph.output[0].type.tensor_type.shape.dim[1].dim_param = "d"
    assert tower(tmp_path, free.SerializeToString())([EMPTY]).shape == (1, DIMENSION)
    free.graph.initializer[-1].CopyFrom(onnx.numpy_helper.from_array(np.zeros((2, 1, 1), np.float32), "constant"))
    free.graph.output[0].type.ClearField("tensor_type")
    free.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    with pytest.raises(ValueError, match=r"session vectors are float32 \(2, 1, 6\), expected float32 \(1, 6\)"):
        tower(tmp_path, free.SerializeToString())([EMPTY])


def test_a_vector_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    model = onnx.load_from_string(session_tower(DIMENSION, 1))
    model.graph.initializer[-1].CopyFrom(
        onnx.numpy_helper.from_array(np.full(DIMENSION, np.nan, np.float32), "constant")
    )
    with pytest.raises(ValueError, match="a session vector is not finite"):
        tower(tmp_path, model.SerializeToString())([EMPTY])


def test_a_model_that_is_no_tower_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"session_tower\.onnx: has inputs \['features'\] and outputs \['scores'\]"):
        tower(tmp_path, linear_ranker(WEIGHTS))
