"""`feedline bench ann`: the figures that are asked for, in one run, on a catalogue of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer.bench.ann import TUNED_BY, Compared, Searched, compare
from indexer.bench.searched import read_searched
from indexer.contract.vector_file import map_vectors
from indexer.errors import InputError
from indexer.progress import Silent, Stages
from indexer.settings import AnnSettings, IndexSettings
from services.bench.ann import Served, figures, measure, one_row, picture

SETTINGS = IndexSettings(ann=AnnSettings(flat_up_to=1000, kinds=("ivf_rabitq",), tune_queries=64), threads=1)
ASKED_FOR = (
    "recall_at_500",
    "p50_ms",
    "p99_ms",
    "raw_p50_ms",
    "raw_p99_ms",
    "batched_qps",
    "reference_batched_qps",
    "index_bytes",
    "operating_point",
)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("ann")
    random = np.random.default_rng(1)
    centres = random.standard_normal((50, 32))

    def around(count: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        out = centres[random.integers(0, 50, count)] + 0.6 * random.standard_normal((count, 32))
        return np.asarray(out / np.linalg.norm(out, axis=1, keepdims=True), np.float32)

    np.save(folder / "vectors.npy", around(8000).astype(np.float16))
    vectors = map_vectors(folder / "vectors.npy")
    searched = Searched(vectors, np.arange(8000), around(TUNED_BY + 64), synthetic=True)
    return compare(searched, SETTINGS, folder, Stages(Silent()))


def test_the_keys_that_are_asked_for_come_first_and_hold_figures(compared: Compared) -> None:
    ours = Served(compared.index, compared.spec, compared.searched.vectors)
    theirs = Served(compared.reference, compared.reference_spec, compared.searched.vectors)
    filters = [(each.name, each.mask, each.least, each.k) for each in compared.filters]
    measured = measure(ours, theirs, compared.asked, filters, threads=1, rounds=1, exact_below=1000)
    found = figures(ours, theirs, compared.recall_at_500, measured, compared.facts())
    assert tuple(found)[: len(ASKED_FOR)] == ASKED_FOR
    assert found["recall_at_500"] == pytest.approx(compared.spec.recall_at_500, abs=0.02)
    assert 0 < found["p50_ms"] <= found["p99_ms"]
    assert 0 < found["raw_p50_ms"] <= found["raw_p99_ms"]
    assert found["batched_qps"] > 0 < found["reference_batched_qps"]
    assert found["index_bytes"] < found["reference_bytes"]
    assert found["synthetic"] is True
    assert found["reference"]["recall_at_500"] >= 0.95
    assert [each["batch"] for each in found["batches"]] == [16, 32]
    assert [each["filter"] for each in found["filters"]][:2] == ["100 %", "10% at random"]
    assert all(each["recall_at_500"] >= 0.9 for each in found["filters"])
    assert "<svg" in picture(found)
    assert one_row(found).row_count >= 8


def test_raw_faiss_finds_what_the_service_finds(compared: Compared) -> None:
    ours = Served(compared.index, compared.spec, compared.searched.vectors)
    asked = compared.asked[:8]
    scores, rows = ours.raw()(asked)
    everything = np.ones(len(ours.vectors), np.bool_)
    for at, (found, given) in enumerate(ours.retriever(1).search(asked, everything, 500)):
        assert found.tolist() == rows[at].tolist()
        assert given.tolist() == scores[at].tolist()


def test_the_first_items_are_asked_the_same() -> None:
    vectors = np.zeros((100, 4), np.float16)
    searched = Searched(vectors, np.array([0, 7, 60]), np.zeros((3, 4), np.float32), synthetic=False)
    fewer = searched.first(50)
    assert (len(fewer.vectors), fewer.first_rows.tolist()) == (50, [0, 7])
    assert searched.first(None) is searched
    assert searched.first(100) == replace(searched)


def test_a_folder_without_a_catalogue_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"catalogue\.parquet: no such file"):
        read_searched(tmp_path, tmp_path, SETTINGS, Stages(Silent()))
