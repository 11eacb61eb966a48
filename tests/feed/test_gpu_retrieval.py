"""What holds wherever the vectors lie; tests/gpu repeats the comparisons on a real device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract.manifest import IndexSpec
from services.feed.gpu import Gpu
from services.feed.gpu_retrieval import GpuRetriever
from tests.feed.gpus import on_the_cpu
from tests.feed.test_retrieval import COUNT, DIMENSION, best, check, queries, vectors
from tests.properties import examples

MANY = 6000


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with closing(on_the_cpu()) as gpu:
        yield gpu


def exact(gpu: Gpu, given: npt.NDArray[np.float16], *, slice_bytes: int = 0) -> GpuRetriever:
    return GpuRetriever.exact(gpu, given, slice_bytes=slice_bytes)


@examples(60)
@given(st.data())
def test_the_best_allowed_rows_are_found_whatever_the_filter_leaves(gpu: Gpu, data: st.DataObject) -> None:
    share = data.draw(st.sampled_from([0.0, 0.002, 0.05, 0.4, 0.9, 1.0]))
    k = data.draw(st.sampled_from([1, 7, 600]))
    many = vectors(MANY)
    mask = np.random.default_rng(data.draw(st.integers(0, 99))).random(MANY) < share
    row = data.draw(st.integers(0, MANY - 1))
    (found,) = exact(gpu, many).search(queries(many, row), mask, k)
    check(found, mask)
    assert found[1].tolist() == pytest.approx(best(many, row, mask, k), abs=1e-3)


def test_a_filter_that_keeps_only_what_is_far_away_still_gets_as_many(gpu: Gpu) -> None:
    many = vectors(MANY)
    asked = queries(many, 5, 6)
    near = np.argsort(-(many.astype(np.float32) @ asked[0]))[: MANY // 2]
    mask = np.ones(MANY, np.bool_)
    mask[near] = False
    for row, found in zip((5, 6), exact(gpu, many).search(asked, mask, 500), strict=True):
        check(found, mask)
        assert found[1].tolist() == pytest.approx(best(many, row, mask, 500), abs=1e-3)


def test_a_narrow_filters_index_is_made_once_and_bounded(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    many, made = vectors(MANY), list[int]()
    most = 3 * (MANY + MANY // 3 * 2 * DIMENSION)
    retriever = exact(gpu, many, slice_bytes=most)
    flat = gpu.flat

    def counted(*args: object) -> object:
        made.append(1)
        return flat(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(gpu, "flat", counted)
    thirds = [np.arange(MANY) % 3 == rest for rest in range(3)]
    for mask in (*thirds, *thirds):
        retriever.search(queries(many, 1), mask, 600)
    assert len(made) == 3
    sixths = [np.arange(MANY) % 6 == rest for rest in range(6)]
    for mask in sixths:
        retriever.search(queries(many, 1), mask, 600)
    assert len(made) == 9
    assert sum(each.among.nbytes + 2 * len(each.rows) * DIMENSION for each in retriever._slices.values()) <= most


def test_a_query_that_is_not_finite_is_refused(gpu: Gpu) -> None:
    asked = queries(vectors(), 1)
    asked[0, 0] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        exact(gpu, vectors()).search(asked, np.ones(COUNT, np.bool_), 5)


def test_the_snapshots_index_is_copied_with_its_lists_to_look_into(gpu: Gpu, tmp_path: Path) -> None:
    many = vectors(MANY)
    index = faiss.index_factory(DIMENSION, "IVF16,SQ8", faiss.METRIC_INNER_PRODUCT)
    index.train(many.astype(np.float32))
    index.add(many.astype(np.float32))
    file = tmp_path / "index.faiss"
    faiss.write_index(index, str(file))
    mask = np.random.default_rng(0).random(MANY) < 0.7
    for nprobe in (1, 16):
        spec = IndexSpec(kind="ivf16,sq8", nprobe=nprobe, recall_at_500=1)
        loaded = GpuRetriever.load(gpu, file, many, index_spec=spec, slice_bytes=0)
        (found,) = loaded.search(queries(many, 3), mask, 500)
        check(found, mask)
        wanted = best(many, 3, mask, 500)
        hits = np.count_nonzero(np.array(found[1]) >= wanted[-1] - 5e-3)
        assert hits >= 450 if nprobe == 16 else len(found[0]) == 500


def test_an_index_of_other_vectors_is_refused(gpu: Gpu, tmp_path: Path) -> None:
    index = faiss.IndexFlatIP(8)
    index.add(vectors(10).astype(np.float32))
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    spec = IndexSpec(kind="flat", recall_at_500=1)
    with pytest.raises(ValueError, match="10 x 8, expected 300 x 8"):
        GpuRetriever.load(gpu, tmp_path / "index.faiss", vectors(), index_spec=spec, slice_bytes=0)
