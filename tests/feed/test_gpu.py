from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import faiss
import numpy as np
import onnxruntime
import pytest

from indexer.contract.cuda import Makers, NoCuda
from indexer.contract.features import Floats
from indexer.contract.snapshot import open_snapshot
from services.errors import StartError
from services.feed.app import open_app
from services.feed.gpu import MOST, Gpu
from services.feed.gpu_retrieval import OnGpu
from services.feed.loading import Loader
from services.feed.onnx_model import open_model
from services.feed.rerank import score
from services.feed.work import Work
from tests.feed.conftest import settings_for
from tests.feed.gpus import on_the_cpu
from tests.feed.shops import question
from tests.snapshots import WEIGHTS, Shop, linear_ranker, publish_shop


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with closing(on_the_cpu()) as gpu:
        yield gpu


def chunks(count: int = 3) -> list[Floats]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((100, 8)).astype(np.float32) for _ in range(count)]


def test_chunks_stand_one_after_the_other(gpu: Gpu) -> None:
    given = chunks()
    index = gpu.flat(given, 8)
    everything = np.concatenate(given).astype(np.float16).astype(np.float32)
    scores, rows = index.search(given[1][:5], 300)
    exact = given[1][:5] @ everything.T
    assert np.allclose(scores, np.take_along_axis(exact, rows, axis=1), atol=1e-3)
    assert (np.sort(rows, axis=1) == np.arange(300)).all()


def test_only_the_devices_thread_touches_its_indexes() -> None:
    seen: set[int] = set()

    class Watched(faiss.IndexFlatIP):
        def search(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
            seen.add(threading.get_ident())
            return super().search(*args, **kwargs)  # type: ignore[call-overload]

    def flat(dimension: int) -> faiss.Index:
        seen.add(threading.get_ident())
        return Watched(dimension)

    with closing(Gpu(lambda: Makers(flat, faiss.IndexFlatL2, faiss.clone_index))) as gpu:
        index = gpu.flat(chunks(), 8)
        askers = [threading.Thread(target=index.search, args=(chunks()[0], 5)) for _ in range(8)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
    assert len(seen) == 1
    assert threading.get_ident() not in seen


def test_an_index_that_nothing_refers_to_is_freed_by_the_devices_thread(gpu: Gpu) -> None:
    first, second = gpu.flat(chunks(), 8), gpu.flat(chunks(), 8)
    first.search(chunks()[0], 1)
    del first
    gc.collect()
    second.search(chunks()[0], 1)  # calls are done in order: the freeing came before
    assert len(gpu._indexes) == 1


def test_a_call_that_fails_leaves_the_thread_working(gpu: Gpu) -> None:
    index = gpu.flat(chunks(), 8)
    with pytest.raises(AssertionError):
        index.search(np.zeros((1, 7), np.float32), 5)
    assert index.search(chunks()[0], 5)[1].shape == (100, 5)


def test_more_rows_than_a_device_selects_are_refused(gpu: Gpu) -> None:
    with pytest.raises(AssertionError, match="selects 2048 at most"):
        gpu.flat(chunks(), 8).search(chunks()[0], MOST + 1)


def test_a_kind_that_no_device_has_is_named(gpu: Gpu) -> None:
    graph = faiss.IndexHNSWFlat(8, 16, faiss.METRIC_INNER_PRODUCT)
    with pytest.raises(ValueError, match=r"IndexHNSWFlat cannot be copied to a device .*gpu_index flat can"):
        gpu.clone(graph)


def test_after_closing_nothing_is_answered() -> None:
    gpu = on_the_cpu()
    index = gpu.flat(chunks(), 8)
    gpu.close()
    gpu.close()
    with pytest.raises(RuntimeError):
        index.search(chunks()[0], 1)


def test_without_cuda_the_error_says_what_is_missing() -> None:
    if faiss.get_num_gpus():
        pytest.skip("this machine has a CUDA device that FAISS can use")
    with pytest.raises(NoCuda, match=r"install feedline\[gpu\]|FAISS sees no device"):
        Gpu.open(0, temp_mb=64)


@pytest.mark.parametrize("section", ["retrieval", "scoring"])
async def test_a_service_that_is_told_to_use_cuda_does_not_start_without_it(tmp_path: Path, section: str) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this environment has builds that can use CUDA")
    with pytest.raises(StartError, match=rf"{section}\.device: cuda: .*built without CUDA: install feedline\[gpu\]"):
        async with open_app(settings_for(tmp_path, **{section: {"device": "cuda"}})):
            pass


def test_a_model_for_a_device_is_not_run_by_the_cpu_instead(tmp_path: Path) -> None:
    if faiss.get_num_gpus():
        pytest.skip("this machine has a CUDA device")
    (tmp_path / "ranker.onnx").write_bytes(linear_ranker(WEIGHTS))
    with pytest.raises((NoCuda, ValueError), match=r"built without CUDA|would run it on the CPU"):
        open_model(tmp_path / "ranker.onnx", 1, 0)


@pytest.mark.parametrize("kind", ["flat", "snapshot"])
def test_a_snapshot_is_scored_from_a_device_as_from_the_cpu(tmp_path: Path, kind: Literal["flat", "snapshot"]) -> None:
    root = tmp_path / "snapshots"
    name = publish_shop(root, Shop(count=3000, tower=True))
    with closing(on_the_cpu()) as gpu:
        plain = Loader(exact_below=0, threads=1).load(open_snapshot(root / name), whole=True)
        loader = Loader(exact_below=0, threads=1, on_gpu=OnGpu(gpu, kind, 0))
        loaded = loader.load(open_snapshot(root / name), whole=True)
        for category in ("", "tea"):
            pair = [score([Work(question(each, 1, 7, category=category))])[0] for each in (plain, loaded)]
            rows = [set(each.answer.shared.candidates.rows.tolist()) for each in pair]
            assert len(rows[0] & rows[1]) >= 0.99 * len(rows[0]) > 0
