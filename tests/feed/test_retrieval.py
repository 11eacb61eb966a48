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
from indexer.contract.manifest import IndexSpec, QuerySpec
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
