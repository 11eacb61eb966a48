"""Lists of different lengths in one array."""

from __future__ import annotations

import numpy as np
import pytest

from indexer.contract.lists import Lists
from indexer.contract.neighbours import NOBODY, neighbour_lists

STARTS = np.array([0, 2, 2, 5, 6], np.int32)
FLAT = np.array([7, 8, 1, 2, 3, 9], np.int32)


def test_rows_read_as_those_of_an_array_filled_up_to_the_longest_asked_for() -> None:
    lists = Lists(STARTS, FLAT, NOBODY)
    assert len(lists) == 4
    assert lists[np.array([0, 1, 2])].tolist() == [[7, 8, -1], [-1, -1, -1], [1, 2, 3]]
    assert lists[np.array([3, 3])].tolist() == [[9], [9]]
    assert lists[2].tolist() == [1, 2, 3]
    assert lists[np.array([2, 0]), np.array([1, 0])].tolist() == [2, 7]


def test_nothing_asked_and_nothing_kept_are_empty() -> None:
    assert Lists(STARTS, FLAT, NOBODY)[np.empty(0, np.int32)].shape == (0, 0)
    nothing = Lists(np.zeros(4, np.int32), FLAT[:0], NOBODY)
    assert nothing[np.array([0, 2])].shape == (2, 0)


def test_two_files_that_do_not_belong_together_are_refused() -> None:
    near = np.concatenate([STARTS, FLAT])
    ids, similarities = neighbour_lists(near, np.ones(6, np.float16), 4)
    assert ids[np.array([0])].tolist() == [[7, 8]]
    assert similarities[np.array([0])].tolist() == [[1, 1]]
    for array, count in ((near[:-1], 4), (near, 5), (near[:3], 4)):
        with pytest.raises(ValueError, match=r"expected \[\d \+ 1 \+ E\] and \[E\]"):
            neighbour_lists(array, np.ones(6, np.float16), count)
