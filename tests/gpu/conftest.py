"""Tests on a real CUDA device; benchmarks/gpu.sh runs them. Elsewhere they are skipped, and say what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from services.feed.gpu import Gpu
from tests.feed.gpus import skip_without_cuda


@pytest.fixture(autouse=True, scope="session")
def _cuda() -> None:
    skip_without_cuda()


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with closing(Gpu.open(0, temp_mb=256)) as gpu:
        yield gpu
