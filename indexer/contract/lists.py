"""Lists of numbers, one an item, end to end in one array: an item without any costs four bytes."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt


class RowLists(Protocol):
    """Lists as an array [n, K] gives them: `lists[rows]` of int32 [k] is [k, K], `lists[rows, places]` is [k].

    An array does; so does `Lists`, where K is the length of the longest of the lists that are asked for.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, key: Any, /) -> npt.NDArray[Any]: ...


class Lists:
    """List i is `flat[starts[i] : starts[i + 1]]`; `starts` int32 [n + 1] and `flat` [E] may be memory-mapped.

    Shorter lists are filled up with `empty`. Places beyond a list's end are not to be asked for.
    """

    __slots__ = ("_empty", "_flat", "_starts")

    def __init__(self, starts: npt.NDArray[np.int32], flat: npt.NDArray[Any], empty: int) -> None:
        self._starts = starts
        self._flat = flat
        self._empty = empty

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, key: Any, /) -> npt.NDArray[Any]:
        if isinstance(key, tuple):
            rows, places = key
            return np.asarray(self._flat[self._starts[rows] + places])
        rows = np.asarray(key)
        if rows.ndim == 0:
            return np.asarray(self._flat[self._starts[rows] : self._starts[rows + 1]])
        begins = self._starts[rows]
        lengths = self._starts[rows + 1] - begins
        place = np.arange(lengths.max(initial=0), dtype=np.int32)
        there = place < lengths[:, None]
        out = np.full(there.shape, self._empty, self._flat.dtype)
        out[there] = self._flat[(begins[:, None] + place)[there]]
        return out
