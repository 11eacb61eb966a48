"""One CUDA device for FAISS: a thread of its own makes, asks and frees whatever lies there.

FAISS allows one thread at a time for all indexes that share a StandardGpuResources, and neither the compute thread nor
the one that loads a new snapshot may wait for the other's whole work: both hand their calls to the device's thread.
What an index takes: 2 bytes a number (float16), and for each search temporary memory, bounded by the resources.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import faiss
import numpy as np
import numpy.typing as npt

from indexer.contract.cuda import Makers, open_device, require_faiss
from indexer.contract.features import Floats

MOST = 2048
"""Rows that FAISS selects on a device for one query, and lists that it looks into."""
_Result = TypeVar("_Result")
Hits = tuple[Floats, npt.NDArray[np.int64]]
"""Scores float32 [B, k] and rows int64 [B, k], best first; row -1: nothing found."""


class Gpu:
    """The thread that owns a device. May be called from any thread; calls are done one after the other."""

    def __init__(self, make: Callable[[], Makers]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpu")
        self._indexes: dict[int, faiss.Index] = {}
        self._keys = itertools.count()
        self._closed = False
        self._owner, self._makers = self._thread.submit(lambda: (threading.get_ident(), make())).result()

    @classmethod
    def open(cls, device: int, *, temp_mb: int) -> Gpu:
        """The device of that number. Raises NoCuda when FAISS or the machine lacks it."""
        require_faiss(device)
        return cls(lambda: open_device(device, temp_bytes=temp_mb << 20))

    def flat(self, chunks: Iterable[Floats], dimension: int) -> DeviceIndex:
        """An exact index of float32 [c, dimension] chunks. Searches of other indexes pass between two chunks."""
        index = self._held(lambda: self._makers.flat(dimension))
        for chunk in chunks:
            index.add(chunk)
        return index

    def clone(self, index: faiss.Index) -> DeviceIndex:
        """A copy of an index of the CPU, with its nprobe. Raises ValueError where FAISS cannot have it on a device."""

        def cloned() -> faiss.Index:
            try:
                return self._makers.to_device(index)
            except RuntimeError as error:
                kind = type(index).__name__
                raise ValueError(
                    f"{kind} cannot be copied to a device (retrieval.gpu_index flat can): {error}"
                ) from error

        return self._held(cloned)

    def close(self) -> None:
        """Frees all indexes and ends the thread. What is asked afterwards raises RuntimeError."""
        if not self._closed:
            self._closed = True
            self._thread.submit(self._indexes.clear)
            self._thread.shutdown(wait=True)

    def _held(self, make: Callable[[], faiss.Index]) -> DeviceIndex:
        key = next(self._keys)

        def put() -> None:
            self._indexes[key] = make()

        self._run(put)
        index = DeviceIndex(self, key)
        weakref.finalize(index, self._release, key).atexit = False
        return index

    def _release(self, key: int) -> None:
        """Whichever thread drops the last reference, the device's frees the memory."""
        if not self._closed:
            self._thread.submit(self._indexes.pop, key, None)

    def _run(self, call: Callable[[], _Result]) -> _Result:
        return self._thread.submit(call).result()

    def _index(self, key: int) -> faiss.Index:
        assert threading.get_ident() == self._owner, "an index of the device is touched by another thread than its own"
        return self._indexes[key]


class DeviceIndex:
    """An index on the device, freed when nothing refers to it any more."""

    __slots__ = ("__weakref__", "_gpu", "_key")

    def __init__(self, gpu: Gpu, key: int) -> None:
        self._gpu = gpu
        self._key = key

    def add(self, chunk: Floats) -> None:
        """Adds float32 [c, d]."""
        self._gpu._run(lambda: self._gpu._index(self._key).add(chunk))

    def search(self, queries: Floats, k: int) -> Hits:
        """The best `k`, at most MOST, for each of float32 [B, d]."""
        assert k <= MOST, f"{k} rows are asked of a device, it selects {MOST} at most"
        scores, rows = self._gpu._run(lambda: self._gpu._index(self._key).search(queries, k))
        return scores, rows
