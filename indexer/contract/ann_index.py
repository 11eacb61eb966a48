"""A FAISS index beside the vectors that it is of, searched in one way by the job that tunes it and the service.

What the index finds may be scored again, exactly, by the vectors: some times `k` candidates, so that its codes may be
short. n items, d numbers each. A filter is prepared once and then narrows any number of searches: lists are looked
into nearest first, but only those that hold something that it leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import faiss
import numpy as np
import numpy.typing as npt

from indexer.contract.features import Floats
from indexer.contract.items import Mask, Rows
from indexer.contract.manifest import IndexSpec, SearchPoint
from indexer.contract.vector_file import Half, half_index

Found = tuple[Floats, npt.NDArray[np.int64]]
"""Scores float32 [q, k] and rows int64 [q, k], best first; a row of -1 stands for nothing found."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The items that a filter leaves, `count` of them, as FAISS asks for them: bits of the rows, and of the lists that
    hold any (None: the index has no lists)."""

    count: int
    rows: npt.NDArray[np.uint8]
    lists: npt.NDArray[np.uint8] | None

    @property
    def nbytes(self) -> int:
        """Of both."""
        return self.rows.nbytes + (self.lists.nbytes if self.lists is not None else 0)


class AnnIndex:
    """For one thread at a time. `spec`: the operating point."""

    def __init__(self, index: faiss.Index, vectors: Half, spec: IndexSpec) -> None:
        self._index = index
        self._vectors = vectors
        self._ivf = lists_of(index)
        self._list_of: npt.NDArray[np.int32] | None = None
        self._refined: faiss.IndexRefine | None = None
        self._exact: faiss.Index | None = None
        self._points = spec.points
        self.spec = spec

    @classmethod
    def load(cls, path: Path, vectors: Half, spec: IndexSpec) -> AnnIndex:
        """Raises ValueError as `read_index`."""
        return cls(read_index(path, vectors), vectors, spec)

    @property
    def count(self) -> int:
        """Items."""
        return int(self._index.ntotal)

    @property
    def lists(self) -> faiss.IndexIVF | None:
        """The inverted lists, where the index has some."""
        return self._ivf

    def inside(self, queries: Floats) -> Floats:
        """The queries float32 [q, d] as the inverted lists have them."""
        if not isinstance(self._index, faiss.IndexPreTransform):
            return queries
        turn = faiss.downcast_VectorTransform(self._index.chain.at(0))  # type: ignore[attr-defined]
        return np.asarray(turn.apply(queries), np.float32)

    def select(self, among: Mask | Rows) -> Selection:
        """Prepares a filter: a mask bool [n], True for what it leaves, or the rows int32."""
        lists, mask = None, mask_of(among, self.count)
        if self._ivf is not None:
            held = np.zeros(self._ivf.nlist, np.bool_)
            held[self._lists_of_rows()[among]] = True
            lists = np.packbits(held, bitorder="little")
        count = int(np.count_nonzero(among)) if among is mask else len(among)
        return Selection(count, np.packbits(mask, bitorder="little"), lists)

    def search(
        self, queries: Floats, k: int, selection: Selection | None = None, point: SearchPoint | None = None
    ) -> Found:
        """The best `k` of what `selection` leaves (None: all) for each of `queries` float32 [q, d].

        `point` None: the manifest's, for as much as the selection leaves. Raises ValueError on a query that is not
        finite.
        """
        require_finite(queries)
        left = self.count if selection is None else selection.count
        k = min(k, left)
        if point is None:
            share = left / max(1, self.count)
            point = next((each for each in self._points if each.share <= share), self._points[-1])
        times = min(point.refine, left / max(1, k))
        inner, kept_alive = self._parameters(point.nprobe, selection)
        if not point.refine:
            found: Found = self._index.search(queries, k, params=inner)
        else:
            outer = faiss.IndexRefineSearchParameters()
            outer.k_factor, outer.base_index_params = max(1.0, times), inner
            found = self._refining().search(queries, k, params=outer)
        del kept_alive
        return found

    def _parameters(self, nprobe: int, selection: Selection | None) -> tuple[Any, list[object]]:
        """How the index is to be searched, and what must live until then: FAISS keeps bare pointers."""
        parameters: Any = faiss.SearchParameters()
        if self._ivf is not None:
            parameters = faiss.SearchParametersIVF()
            parameters.nprobe = nprobe
        elif nprobe:
            parameters = faiss.SearchParametersHNSW()  # type: ignore[attr-defined]
            parameters.efSearch = nprobe
        if selection is None:
            return parameters, []
        selector = _bitmap(selection.rows)
        parameters.sel = selector
        kept: list[object] = [selector]
        if self._ivf is not None and selection.lists is not None:
            of_lists = _bitmap(selection.lists)
            nearest = faiss.SearchParameters()
            nearest.sel = of_lists
            parameters.quantizer_params = nearest
            kept += [of_lists, nearest]
        return parameters, kept

    def _refining(self) -> faiss.IndexRefine:
        """The index, and the vectors to score by what it finds."""
        if self._refined is None:
            self._exact = half_index(self._vectors)
            self._refined = faiss.IndexRefine(self._index, self._exact)
        return self._refined

    def _lists_of_rows(self) -> npt.NDArray[np.int32]:
        """int32 [n]: the list that holds each row."""
        assert self._ivf is not None
        if self._list_of is None:
            self._list_of = np.empty(self.count, np.int32)
            for number, rows in each_list(self._ivf):
                self._list_of[rows] = number
        return self._list_of


def mask_of(among: Mask | Rows, items: int) -> Mask:
    """bool [items] of a mask, which it is, or of rows int32."""
    if among.dtype == np.bool_:
        return cast("Mask", among)
    mask = np.zeros(items, np.bool_)
    mask[among] = True
    return mask


def require_finite(queries: Floats) -> None:
    """Raises ValueError on a query that is not finite: FAISS would take it."""
    if not np.isfinite(queries).all():
        raise ValueError("a query vector is not finite")


def read_index(path: Path, vectors: Half) -> faiss.Index:
    """The index in a file, memory-mapped: processes share it, and it is read where it is needed. The file must not be
    written to while the index lives. FastScan's blocks, which want an alignment that files lack, are copied.

    Raises ValueError when it does not hold `vectors` [n, d].
    """
    loaded = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    if (loaded.ntotal, loaded.d) != vectors.shape:
        raise ValueError(f"{path.name}: {loaded.ntotal} x {loaded.d}, expected {' x '.join(map(str, vectors.shape))}")
    return loaded


def each_list(ivf: faiss.IndexIVF) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Each list that is not empty, by number, with its rows: a view."""
    lists = ivf.invlists
    assert lists is not None
    for number in range(ivf.nlist):
        if size := lists.list_size(number):
            yield number, faiss.rev_swig_ptr(lists.get_ids(number), size)


def found_rows(found: Found) -> list[tuple[Rows, Floats]]:
    """For each query what was found: rows int32 [c] and scores float32 [c]."""
    scores, rows = found[0], found[1].astype(np.int32)
    there = rows >= 0
    if there.all():
        return list(zip(rows, scores, strict=True))
    return [(row[known], score[known]) for row, score, known in zip(rows, scores, there, strict=True)]


def lists_of(index: faiss.Index) -> faiss.IndexIVF | None:
    """The inverted lists of an index, where it has some."""
    if isinstance(index, faiss.IndexPreTransform):
        index = faiss.downcast_index(index.index)
    return index if isinstance(index, faiss.IndexIVF) else None


def _bitmap(bits: npt.NDArray[np.uint8]) -> faiss.IDSelectorBitmap:
    return faiss.IDSelectorBitmap(len(bits), faiss.swig_ptr(bits))
