from __future__ import annotations

import gc
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest

from indexer.contract.features import Floats
from indexer.contract.manifest import IndexSpec
from services.feed.gpu import MOST, Gpu
from services.feed.gpu_retrieval import GpuRetriever
from services.feed.retrieval import Nearest, Retriever

pytestmark = pytest.mark.gpu
COUNT, DIMENSION, K = 200_000, 128, 500
FLAT = IndexSpec(kind="flat", recall_at_500=1)


@pytest.fixture(scope="module")
def vectors() -> npt.NDArray[np.float16]:
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((2000, DIMENSION)).astype(np.float32)
    out = centres[rng.integers(0, len(centres), COUNT)] + 0.5 * rng.standard_normal((COUNT, DIMENSION), np.float32)
    return np.asarray(out / np.linalg.norm(out, axis=1, keepdims=True), np.float16)


@pytest.fixture(scope="module")
def queries(vectors: npt.NDArray[np.float16]) -> Floats:
    rows = np.random.default_rng(2).integers(0, COUNT, (32, 4))
    return np.asarray(vectors[rows].astype(np.float32).mean(axis=1), np.float32)


@pytest.fixture(scope="module")
def exact(vectors: npt.NDArray[np.float16]) -> Retriever:
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(vectors.astype(np.float32))
    return Retriever(index, vectors, index_spec=FLAT, exact_below=0, threads=4)


def recall(vectors: npt.NDArray[np.float16], queries: Floats, found: list[Nearest], wanted: list[Nearest]) -> float:
    """Share of those wanted whose exact score is reached by what was found."""
    hits = total = 0
    for query, (rows, _), (_, least) in zip(queries, found, wanted, strict=True):
        hits += int(np.count_nonzero(vectors[rows].astype(np.float32) @ query >= least[-1] - 1e-6))
        total += len(least)
    return hits / total


@pytest.mark.parametrize("share", [1.0, 0.9, 0.3, 0.1, 0.01])
def test_the_device_finds_what_exact_search_finds_under_every_filter(
    gpu: Gpu, vectors: npt.NDArray[np.float16], queries: Floats, exact: Retriever, share: float
) -> None:
    mask = np.random.default_rng(3).random(COUNT) < share
    retriever = GpuRetriever.exact(gpu, vectors, slice_bytes=0)
    found = retriever.search(queries, mask, K)
    assert all(mask[rows].all() and len(rows) == len(set(rows.tolist())) == K for rows, _ in found)
    assert recall(vectors, queries, found, exact.search(queries, mask, K)) >= 0.999
    for query, (rows, scores) in zip(queries, found, strict=True):
        assert np.allclose(scores, vectors[rows].astype(np.float32) @ query, atol=1e-3)


@pytest.mark.parametrize("factory", ["IVF256,Flat", "IVF256,SQ8", "IVF256,SQfp16"])
def test_a_copied_index_has_the_recall_of_the_one_of_the_cpu(
    gpu: Gpu, vectors: npt.NDArray[np.float16], queries: Floats, exact: Retriever, factory: str, tmp_path: Path
) -> None:
    index = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[:50_000].astype(np.float32))
    index.add(vectors.astype(np.float32))
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    spec = IndexSpec(kind=factory, nprobe=32, recall_at_500=1)
    everything = np.ones(COUNT, np.bool_)
    wanted = exact.search(queries, everything, K)
    cpu = Retriever(index, vectors, index_spec=spec, exact_below=0, threads=4)
    loaded = GpuRetriever.load(gpu, tmp_path / "index.faiss", vectors, index_spec=spec, slice_bytes=0)
    by_cpu, by_device = (
        recall(vectors, queries, each.search(queries, everything, K), wanted) for each in (cpu, loaded)
    )
    assert by_device == pytest.approx(by_cpu, abs=0.001)


def test_the_most_rows_that_a_device_selects_are_found(
    gpu: Gpu, vectors: npt.NDArray[np.float16], queries: Floats
) -> None:
    scores, rows = gpu.flat([vectors[:10_000].astype(np.float32)], DIMENSION).search(queries, MOST)
    assert (rows >= 0).all()
    assert (np.diff(scores, axis=1) <= 0).all()


def test_kinds_that_no_device_has_are_refused(gpu: Gpu) -> None:
    for factory in ("HNSW16", "IVF4,PQ16x4fs"):
        index = faiss.index_factory(DIMENSION, factory, faiss.METRIC_INNER_PRODUCT)
        index.train(np.random.default_rng(1).standard_normal((200, DIMENSION), np.float32))
        with pytest.raises(ValueError, match="cannot be copied to a device"):
            gpu.clone(index)


def test_memory_comes_back_when_a_snapshot_goes(gpu: Gpu, vectors: npt.NDArray[np.float16]) -> None:
    """Sixty times 51 MB and its slices, one after the other: more than stays when none were freed would show as an
    error on small cards, and in the count on every card."""
    mask = np.arange(COUNT) % 5 == 0
    for _ in range(60):
        retriever = GpuRetriever.exact(gpu, vectors, slice_bytes=0)
        retriever.search(vectors[:1].astype(np.float32), mask, K)
        del retriever
        gc.collect()
    gpu.flat([vectors[:1].astype(np.float32)], DIMENSION).search(vectors[:1].astype(np.float32), 1)
    assert len(gpu._indexes) <= 1
