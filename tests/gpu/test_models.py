from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexer.contract.cuda import PROVIDER
from indexer.contract.features import Context
from indexer.packaged_model import packaged_model
from services.feed.onnx_model import open_model
from services.feed.session_vectors import by_tower
from tests.feed.test_ranker import SPEC, features, scored
from tests.snapshots import WEIGHTS, linear_ranker, session_tower

pytestmark = pytest.mark.gpu


def test_a_ranker_on_the_device_scores_as_on_the_cpu(tmp_path: Path) -> None:
    from services.feed.ranker import Ranker  # noqa: PLC0415

    (tmp_path / "ranker.onnx").write_bytes(linear_ranker(WEIGHTS))
    assert open_model(tmp_path / "ranker.onnx", 1, 0).get_providers()[0] == PROVIDER
    blocks = features(50, 50, 3)
    on_cpu, on_device = (scored(Ranker.load(tmp_path / "ranker.onnx", SPEC, 1, cuda), blocks) for cuda in (None, 0))
    for one, other in zip(on_cpu, on_device, strict=True):
        assert np.allclose(one, other, atol=1e-4)


def test_a_session_tower_on_the_device_gives_the_vectors_of_the_cpu(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((500, 16)).astype(np.float16)
    (tmp_path / "tower.onnx").write_bytes(session_tower(16, 7))
    contexts = [Context(rng.integers(0, 500, size).astype(np.int32), np.full(size, 2, np.uint8)) for size in (1, 5, 20)]
    on_cpu, on_device = (by_tower(tmp_path / "tower.onnx", vectors, 1, cuda)(contexts) for cuda in (None, 0))
    assert np.allclose(on_cpu, on_device, atol=1e-4)


def test_an_encoder_on_the_device_gives_the_vectors_of_the_cpu() -> None:
    torch = pytest.importorskip("torch", reason="needs feedline[index]")
    if not torch.cuda.is_available():
        pytest.skip("the installed torch sees no CUDA device")
    model = packaged_model()
    if model is None:
        pytest.skip("needs feedline[demo], which holds a model")
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    texts = [f"green tea {size} g organic" for size in range(64)]
    on_cpu, on_device = (
        SentenceTransformer(model, device=device, local_files_only=True).encode(texts, normalize_embeddings=True)
        for device in ("cpu", "cuda")
    )
    assert (np.sum(on_cpu * on_device, axis=1) >= 0.999).all()
