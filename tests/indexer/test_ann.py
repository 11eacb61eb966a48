"""The index: exact where it is small, tuned to the recall floor where it is not, and never fed with NaN."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.ann import build_index, search, tune, write_index
from indexer.contract.inner_product import as_wide, widened, width_of
from indexer.contract.manifest import IndexSpec
from indexer.errors import GateFailed
from indexer.settings import AnnSettings
from indexer.vector_store import Vectors
from tests.properties import examples

IVF = AnnSettings(flat_up_to=100)


def clustered(texts: int, copies: int = 1, seed: int = 5) -> Vectors:
    """Vectors of length 1 around 40 centres, each `copies` times."""
    random = np.random.default_rng(seed)
    centres = random.standard_normal((40, 24))
    vectors = centres[random.integers(0, 40, texts)] + 0.6 * random.standard_normal((texts, 24))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.repeat(vectors, copies, axis=0).astype(np.float16)


def built(vectors: Vectors, settings: AnnSettings, copies: int = 1) -> tuple[faiss.Index, IndexSpec]:
    first_rows = np.arange(0, len(vectors), copies)
    index = build_index(vectors, first_rows, settings, threads=1, seed=1, advance=lambda rows: None)
    queries = vectors[:: max(1, len(vectors) // 64)].astype(np.float32)
    return index, tune(index, vectors, queries, settings)


def test_an_index_that_the_disk_does_not_take_is_an_error_of_the_disk() -> None:
    index, _ = built(clustered(5000), IVF)
    with pytest.raises(OSError, match=r"/dev/full: cannot be written: .*No space left on device"):
        write_index(index, Path("/dev/full"))


def test_a_small_catalogue_is_searched_exactly() -> None:
    index, spec = built(clustered(100), IVF)
    assert (spec.kind, spec.nprobe, spec.recall_at_500) == ("flat", 0, 1.0)
    assert (index.ntotal, index.d) == (100, 24)


def test_the_cheapest_nprobe_that_holds_the_floor_is_taken() -> None:
    vectors = clustered(8000)
    costs = []
    for floor in (0.5, 0.9, 0.98):
        index, spec = built(vectors, AnnSettings(flat_up_to=100, recall_floor=floor))
        assert isinstance(index, faiss.IndexIVF)
        assert spec.kind == f"ivf{index.nlist},sq8"
        assert spec.recall_at_500 >= floor
        assert 1 <= spec.nprobe < index.nlist
        costs.append(spec.nprobe)
    assert costs == sorted(costs)


def test_the_recall_that_is_stated_is_that_of_exact_search() -> None:
    vectors = clustered(6000)
    index, spec = built(vectors, IVF)
    queries = vectors[::93][:64].astype(np.float32)
    exact = np.argsort(-(queries @ vectors.astype(np.float32).T), axis=1)[:, :500]
    _, rows = search(index, queries, 500, spec.nprobe)
    found = [len(set(a.tolist()) & set(b.tolist())) / 500 for a, b in zip(exact, rows, strict=True)]
    assert np.mean(found) == pytest.approx(spec.recall_at_500, abs=0.02)


def test_items_of_one_text_count_as_equally_good() -> None:
    _, spec = built(clustered(900, copies=20), IVF, copies=20)
    assert spec.recall_at_500 >= 0.95


def test_a_floor_that_cannot_be_reached_gives_the_best_and_not_an_error() -> None:
    index, spec = built(clustered(4000), AnnSettings(flat_up_to=100, recall_floor=1.0))
    assert isinstance(index, faiss.IndexIVF)
    assert spec.nprobe <= index.nlist
    assert 0.9 < spec.recall_at_500 <= 1.0


@pytest.mark.parametrize("count", [1, 7, 3000])
def test_identical_items_are_all_found(count: int) -> None:
    vectors = np.tile(clustered(1), (count, 1))
    index = build_index(vectors, np.array([0]), IVF, threads=1, seed=1, advance=lambda rows: None)
    spec = tune(index, vectors, vectors[:1].astype(np.float32), IVF)
    scores, rows = search(index, vectors[:1].astype(np.float32), 500, spec.nprobe)
    assert rows.shape == (1, min(500, count))
    assert (rows >= 0).all()
    assert np.allclose(scores, 1, atol=1e-2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("settings", [AnnSettings(), IVF])
def test_a_vector_that_is_not_finite_is_refused_before_faiss_sees_it(value: float, settings: AnnSettings) -> None:
    vectors = clustered(4000)
    vectors[3999, 3] = value
    with pytest.raises(GateFailed, match="no_nan"):
        built(vectors, settings)


def test_a_query_that_is_not_finite_is_refused() -> None:
    index, _ = built(clustered(10), IVF)
    with pytest.raises(ValueError, match="not finite"):
        search(index, np.full((1, 24), np.nan, np.float32), 5, 0)


def test_one_seed_gives_one_index() -> None:
    first, second = (faiss.serialize_index(built(clustered(5000), IVF)[0]) for _ in range(2))
    assert np.array_equal(first, second)


def test_vectors_of_unlike_lengths_are_found_in_few_lists() -> None:
    """Popular items have long vectors: an index of lists by direction alone would look into nearly all of them."""
    random = np.random.default_rng(5)
    count, dimension = 6000, 24
    centres = random.standard_normal((60, dimension))
    vectors = centres[random.integers(0, 60, count)] + 0.4 * random.standard_normal((count, dimension))
    vectors *= (0.3 + random.pareto(2.5, count))[:, None] / np.linalg.norm(vectors, axis=1, keepdims=True)
    half = vectors.astype(np.float16)
    queries = random.standard_normal((64, dimension)).astype(np.float32)
    settings = AnnSettings(flat_up_to=100)
    index = build_index(half, np.arange(count), settings, threads=1, seed=1, advance=lambda done: None)
    assert isinstance(index, faiss.IndexIVF)
    spec = tune(index, half, queries, settings)
    assert spec.width == index.d == 32
    assert spec.recall_at_500 >= 0.95
    assert spec.nprobe <= index.nlist // 2
    scores, rows = search(index, queries, 10, index.nlist)
    exact = np.sort(queries @ half.astype(np.float32).T, axis=1)[:, ::-1][:, :10]
    assert scores == pytest.approx(exact, abs=0.05 * float(np.abs(exact).max())), "inner products, within 8 bits"
    assert (rows >= 0).all()


@examples(100)
@given(st.integers(0, 2**32 - 1), st.integers(1, 40))
def test_widening_keeps_inner_products_and_makes_all_equally_long(seed: int, dimension: int) -> None:
    random = np.random.default_rng(seed)
    vectors = (random.standard_normal((7, dimension)) * random.gamma(2, 2, (7, 1))).astype(np.float32)
    queries = random.standard_normal((3, dimension)).astype(np.float32)
    longest = float(np.linalg.norm(vectors, axis=1).max())
    wide = widened(vectors, longest)
    assert wide.shape == (7, width_of(dimension))
    assert wide.shape[1] > dimension
    assert np.linalg.norm(wide, axis=1) == pytest.approx(longest, rel=1e-3)
    assert as_wide(queries, wide.shape[1]) @ wide.T == pytest.approx(queries @ vectors.T, abs=1e-4)
