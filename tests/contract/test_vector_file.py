"""vectors.npy as FAISS sees it: the same numbers, no copy, the file untouched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from indexer.contract.vector_file import half_index, map_vectors


def numbers(count: int, dimension: int = 16) -> npt.NDArray[np.float16]:
    return np.random.default_rng(1).standard_normal((count, dimension)).astype(np.float16)


def saved(folder: Path, count: int) -> Path:
    np.save(folder / "vectors.npy", numbers(count))
    return folder / "vectors.npy"


@pytest.mark.parametrize("count", [1, 2, 5000])
def test_a_mapped_file_is_searched_without_a_copy_and_stays_as_it_is(tmp_path: Path, count: int) -> None:
    path = saved(tmp_path, count)
    before = path.read_bytes()
    vectors = map_vectors(path)
    for _ in range(2):
        index = half_index(vectors)
        assert not index.codes.is_owned  # type: ignore[attr-defined]
        assert (index.ntotal, index.d) == (count, 16)
        asked = numbers(3).astype(np.float32) if count > 2 else numbers(1).astype(np.float32)
        scores, rows = index.search(asked, 1)
        exact = asked @ vectors.astype(np.float32).T
        assert scores[:, 0] == pytest.approx(exact.max(axis=1), abs=1e-4)
        assert rows[:, 0].tolist() == exact.argmax(axis=1).tolist()
    assert np.array_equal(vectors, numbers(count))
    assert path.read_bytes() == before
    assert np.array_equal(np.load(path), numbers(count)), "others read the file"


def test_vectors_of_no_file_or_a_part_of_one_are_copied(tmp_path: Path) -> None:
    whole = map_vectors(saved(tmp_path, 5000))
    for given in (numbers(5000), whole[1000:3000], whole[:, :8], whole[::2]):
        index = half_index(given)
        assert index.codes.is_owned  # type: ignore[attr-defined]
        rebuilt = np.stack([index.reconstruct(at) for at in (0, len(given) - 1)])
        assert np.array_equal(rebuilt.astype(np.float16), given[[0, -1]])
    assert not half_index(whole[:1000]).codes.is_owned, "the first ones are where the file begins"  # type: ignore[attr-defined]


def test_mapped_vectors_are_not_to_be_written_to(tmp_path: Path) -> None:
    vectors = map_vectors(saved(tmp_path, 10))
    with pytest.raises(ValueError, match="read-only"):
        vectors[0, 0] = 1


def test_no_vectors_make_an_empty_index() -> None:
    assert half_index(np.empty((0, 16), np.float16)).ntotal == 0
