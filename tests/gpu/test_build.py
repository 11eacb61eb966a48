from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexer.ann.build import build_indexes
from indexer.ann.device import flat_maker
from indexer.ann.tune import tune
from indexer.settings import AnnSettings, KindName

pytestmark = pytest.mark.gpu
COUNT, DIMENSION = 30_000, 64


@pytest.mark.parametrize("kind", ["ivf_sq8", "ivf_rabitq"])
def test_an_index_whose_lists_a_device_found_is_as_good(kind: KindName, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((300, DIMENSION)).astype(np.float32)
    near = centres[rng.integers(0, 300, COUNT)] + 0.5 * rng.standard_normal((COUNT, DIMENSION), np.float32)
    vectors = np.asarray(near / np.linalg.norm(near, axis=1, keepdims=True), np.float16)
    queries = vectors[rng.integers(0, COUNT, 64)].astype(np.float32)
    points = []
    for device in ("cpu", "cuda"):
        settings = AnnSettings.model_validate({"kinds": [kind], "device": device})
        folder = tmp_path / device
        folder.mkdir()
        candidates = build_indexes(
            vectors,
            np.arange(COUNT),
            settings,
            folder,
            typical=np.empty((0, DIMENSION), np.float32),
            threads=4,
            seed=1,
            advance=lambda count: None,
            make_flat=flat_maker(settings),
        )
        points.append(tune(candidates, vectors, queries, settings, seed=1).spec)
    assert points[0].kind == points[1].kind
    assert all(point.recall_at_500 >= 0.95 for point in points)
    assert points[1].nprobe == pytest.approx(points[0].nprobe, rel=0.3, abs=2)
