from __future__ import annotations

import threading
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract.features import Floats, query_vector
from indexer.contract.manifest import IndexSpec, QuerySpec, SearchPoint
from indexer.contract.vector_file import map_vectors
from services.feed.retrieval import Nearest, Retriever
from tests.feed.shops import viewed_context
from tests.properties import examples

QUERY = QuerySpec()
COUNT, DIMENSION = 300, 8


def vectors(count: int = COUNT) -> npt.NDArray[np.float16]:
    rng = np.random.default_rng(3)
    out = rng.standard_normal((count, DIMENSION)).astype(np.float32)
    return np.asarray(out / np.linalg.norm(out, axis=1, keepdims=True), np.float16)


def flat(given: npt.NDArray[np.float16], *, exact_below: int = 0, threads: int = 1) -> Retriever:
    index = faiss.IndexFlatIP(given.shape[1])
    index.add(given.astype(np.float32))
    spec = IndexSpec(kind="flat", recall_at_500=1)
    return Retriever(index, given, index_spec=spec, exact_below=exact_below, threads=threads)


def ivf(given: npt.NDArray[np.float16], nprobe: int) -> Retriever:
    index = faiss.index_factory(given.shape[1], "IVF16,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(given.astype(np.float32))
    index.add(given.astype(np.float32))
    spec = IndexSpec(kind="ivf16", nprobe=nprobe, recall_at_500=1)
    return Retriever(index, given, index_spec=spec, exact_below=0, threads=1)


def queries(given: npt.NDArray[np.float16], *rows: int) -> Floats:
    """Vectors of questions of one view each."""
    return np.stack([query_vector(given, viewed_context(row), QUERY) for row in rows])


def best(given: npt.NDArray[np.float16], row: int, mask: npt.NDArray[np.bool_], k: int) -> list[float]:
    scores = given.astype(np.float32) @ query_vector(given, viewed_context(row), QUERY)
    return sorted(scores[mask].tolist(), reverse=True)[:k]


def check(found: Nearest, mask: npt.NDArray[np.bool_]) -> None:
    rows, scores = found
    assert (rows.dtype.name, scores.dtype.name) == ("int32", "float32")
    assert len(rows) == len(scores) == len(set(rows.tolist()))
    assert mask[rows].all()
    assert (np.diff(scores) <= 0).all()


@examples(60)
@given(st.data())
def test_the_best_allowed_rows_are_found_by_index_and_by_scan_alike(data: st.DataObject) -> None:
    share = data.draw(st.sampled_from([0.0, 0.01, 0.3, 0.9, 1.0]))
    k = data.draw(st.sampled_from([1, 7, 500]))
    given_vectors = vectors()
    mask = np.random.default_rng(data.draw(st.integers(0, 99))).random(COUNT) < share
    row = data.draw(st.integers(0, COUNT - 1))
    for exact_below in (0, COUNT + 1):
        (found,) = flat(given_vectors, exact_below=exact_below).search(queries(given_vectors, row), mask, k)
        check(found, mask)
        assert found[1].tolist() == pytest.approx(best(given_vectors, row, mask, k), abs=1e-5)


@pytest.mark.parametrize("exact_below", [0, COUNT + 1])
def test_a_batch_answers_each_question_as_if_alone(exact_below: int) -> None:
    retriever = flat(vectors(), exact_below=exact_below)
    mask = np.arange(COUNT) % 3 > 0
    asked = queries(vectors(), *range(0, 40, 2))
    for query, (rows, scores) in zip(asked, retriever.search(asked, mask, 500), strict=True):
        ((alone, alone_scores),) = retriever.search(query[None], mask, 500)
        assert rows.tolist() == alone.tolist()
        assert scores == pytest.approx(alone_scores, abs=1e-6)


def test_nothing_allowed_is_nothing_found() -> None:
    for rows, scores in flat(vectors()).search(queries(vectors(), 1, 1, 1), np.zeros(COUNT, np.bool_), 500):
        assert (len(rows), len(scores)) == (0, 0)


def test_more_asked_for_than_there_are_gives_what_there_is() -> None:
    """No padding of -1 becomes a row (facebookresearch/faiss#5219)."""
    ((rows, _),) = flat(vectors(5)).search(queries(vectors(5), 0), np.ones(5, np.bool_), 500)
    assert sorted(rows.tolist()) == [0, 1, 2, 3, 4]


def test_lists_that_are_not_probed_give_fewer_rows_and_never_minus_one() -> None:
    mask = np.ones(COUNT, np.bool_)
    for only in (mask, np.arange(COUNT) % 5 == 0):
        ((few, _),) = ivf(vectors(), nprobe=1).search(queries(vectors(), 0), only, 500)
        ((all_of_them, _),) = ivf(vectors(), nprobe=16).search(queries(vectors(), 0), only, 500)
        assert 0 < len(few) < len(all_of_them) == int(only.sum())
        assert few.min() >= 0
        assert only[few].all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_query_that_is_not_finite_is_refused(bad: float) -> None:
    asked = queries(vectors(), 1, 3)
    asked[1, 0] = bad
    with pytest.raises(ValueError, match="not finite"):
        flat(vectors()).search(asked, np.ones(COUNT, np.bool_), 500)


def test_one_item_is_found() -> None:
    ((rows, scores),) = flat(vectors(1)).search(queries(vectors(1), 0), np.ones(1, np.bool_), 500)
    assert rows.tolist() == [0]
    assert scores == pytest.approx([1], abs=1e-3)


def test_identical_items_are_all_found() -> None:
    same = np.repeat(vectors(1), 20, axis=0)
    ((rows, _),) = flat(same).search(queries(same, 0), np.ones(20, np.bool_), 500)
    assert sorted(rows.tolist()) == list(range(20))


def test_the_number_of_threads_holds_on_whichever_thread_searches() -> None:
    retriever = flat(vectors(), threads=3)
    seen: list[int] = []

    def search() -> None:
        retriever.search(queries(vectors(), 0), np.ones(COUNT, np.bool_), 500)
        seen.append(faiss.omp_get_max_threads())

    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    assert seen == [3]


@pytest.mark.parametrize("count", [9, 11])
def test_an_index_that_does_not_belong_to_the_vectors_is_refused_by_name(tmp_path: Path, count: int) -> None:
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(vectors(count).astype(np.float32))
    faiss.write_index(index, str(tmp_path / "index.faiss"))
    spec = IndexSpec(kind="flat", recall_at_500=1)
    with pytest.raises(ValueError, match=rf"index\.faiss: {count} x 8, expected 10 x 8"):
        Retriever.load(tmp_path / "index.faiss", vectors(10), index_spec=spec, exact_below=0, threads=1)


def refined(given: npt.NDArray[np.float16], tmp_path: Path, *, exact_below: int = 0) -> Retriever:
    """Signs of rotated vectors, scanned 32 at a time, in a file, and vectors in another one."""
    ivf = faiss.index_factory(given.shape[1], "IVF16,RaBitQfs", faiss.METRIC_INNER_PRODUCT)
    ivf.train(given.astype(np.float32))
    ivf.add(given.astype(np.float32))
    faiss.write_index(ivf, str(tmp_path / "index.faiss"))
    np.save(tmp_path / "vectors.npy", given)
    narrow = SearchPoint(share=0.1, nprobe=16, refine=8, recall_at_500=1)
    spec = IndexSpec(kind="ivf16,rabitqfs", nprobe=12, refine=8, recall_at_500=1, filtered=(narrow,))
    mapped = map_vectors(tmp_path / "vectors.npy")
    return Retriever.load(tmp_path / "index.faiss", mapped, index_spec=spec, exact_below=exact_below, threads=1)


def wide_vectors(count: int) -> npt.NDArray[np.float16]:
    rng = np.random.default_rng(4)
    out = (
        rng.standard_normal((count, 64)).astype(np.float32)
        + 2 * rng.standard_normal((20, 64))[rng.integers(0, 20, count)]
    )
    return np.asarray(out / np.linalg.norm(out, axis=1, keepdims=True), np.float16)


@pytest.mark.parametrize("share", [1.0, 0.3, 0.02])
def test_refined_scores_are_exact_and_found_under_any_filter(tmp_path: Path, share: float) -> None:
    given = wide_vectors(4000)
    retriever = refined(given, tmp_path)
    mask = np.random.default_rng(6).random(4000) < share
    asked = given[:8].astype(np.float32)
    by_rows = retriever.search(asked, np.flatnonzero(mask).astype(np.int32), 30)
    for query, found, same in zip(asked, retriever.search(asked, mask, 30), by_rows, strict=True):
        check(found, mask)
        assert np.array_equal(found[0], same[0])
        exact = given.astype(np.float32) @ query
        assert found[1] == pytest.approx(exact[found[0]], abs=1e-4)
        assert np.isin(np.argsort(-np.where(mask, exact, -9))[:30], found[0]).mean() > 0.9


def test_a_filter_is_prepared_once_while_its_mask_lives(tmp_path: Path) -> None:
    retriever = refined(wide_vectors(4000), tmp_path, exact_below=1000)
    wide, narrow = np.arange(4000) % 2 > 0, np.arange(4000) % 8 == 0
    kept = [retriever._filters.of(mask) for mask in (wide, narrow)]
    retriever.search(wide_vectors(2).astype(np.float32), wide, 10)
    assert [retriever._filters.of(mask) for mask in (wide, narrow)] == kept
    assert [(each.slice is None, each.selection is None) for each in kept] == [(True, False), (False, True)]


def test_a_mask_of_the_same_place_in_memory_is_another_filter(tmp_path: Path) -> None:
    given = wide_vectors(2000)
    retriever = refined(given, tmp_path, exact_below=3000)
    for turn in range(200):
        mask = np.zeros(2000, np.bool_)
        mask[turn * 10 : turn * 10 + 10] = True
        ((rows, _),) = retriever.search(given[:1].astype(np.float32), mask, 10)
        assert sorted(rows.tolist()) == list(range(turn * 10, turn * 10 + 10))
        del mask


def test_what_is_kept_of_filters_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.feed.slices._BYTES", 100_000)
    given = wide_vectors(4000)
    retriever = refined(given, tmp_path, exact_below=4000)
    kept = retriever._filters._kept
    for start in range(0, 3000, 100):
        mask = np.zeros(4000, np.bool_)
        mask[start : start + 100] = True
        retriever.search(given[:1].astype(np.float32), mask, 10)
        assert kept.currsize <= 100_000
    large = np.arange(4000) < 3000
    retriever.search(given[:1].astype(np.float32), large, 10)
    assert kept.currsize <= 100_000


def test_lists_are_chosen_among_those_that_hold_what_the_filter_leaves() -> None:
    """The nearest list holds nothing that is allowed: the one list that does is looked into all the same."""
    given = vectors()
    retriever = ivf(given, nprobe=1)
    asked = queries(given, 0)
    ((near, _),) = retriever.search(asked, np.ones(COUNT, np.bool_), 500)
    far = np.ones(COUNT, np.bool_)
    far[near] = False
    ((found, _),) = retriever.search(asked, far, 500)
    assert len(found) > 0
    check((found, np.zeros(len(found), np.float32)), far)
