"""Content vectors of all builds, kept by (encoder fingerprint, content key).

    <folder>/<fingerprint>/shard-<digest>.vectors.npy   float16 [m, d]
    <folder>/<fingerprint>/shard-<digest>.keys.npy      bytes S16 [m], the content key of each vector

A shard is written to temporary names and renamed, its keys last: without keys there is no shard. The digest is that
of both arrays, so that a damaged shard is recognised, removed and encoded again. Shards are never changed.
"""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.progress import Advance
from indexer.rows_file import rows_file
from indexer.text import Keys

Vectors = npt.NDArray[np.float16]
"""Content vectors [m, d], each of length 1 (0 for a text without tokens)."""
Places = npt.NDArray[np.int64]
_KEYS = ".keys.npy"
_VECTORS = ".vectors.npy"
_NOWHERE = -1
_GATHERED_ROWS = 65_536
_READ_BYTES = 1 << 22


class VectorStore:
    """The shards of one encoder. `damaged` names those that were removed, and why.

    About 40 bytes a vector in memory; opening reads every byte once, on so many threads.
    """

    def __init__(self, folder: Path, fingerprint: str, threads: int = 1) -> None:
        self._folder = folder / fingerprint
        self._folder.mkdir(parents=True, exist_ok=True)
        self.damaged: dict[str, str] = {}
        self._shards: list[Vectors] = []
        self._keys: list[Keys] = []
        self._index: _Index | None = None
        found = sorted(self._folder.glob(f"shard-*{_KEYS}"))
        with ThreadPoolExecutor(threads) as readers:
            faults = list(readers.map(_fault, found))
        for path, fault in zip(found, faults, strict=True):
            self._take(path, fault)

    def __len__(self) -> int:
        return sum(map(len, self._keys))

    @property
    def dimension(self) -> int:
        """d of the vectors; 0 while there are none."""
        return int(self._shards[0].shape[1]) if self._shards else 0

    def find(self, keys: Keys) -> Places:
        """int64 [t]: where the vector of each key is, to be given to `gather`; -1 when it is not stored."""
        if self._index is None:
            self._index = _Index(np.concatenate([np.empty(0, "S16"), *self._keys]))
        return self._index.find(keys)

    def add(self, keys: Keys, vectors: Vectors) -> Places:
        """Stores float16 [m, d] under S16 [m], durably; int64 [m]: where. Earlier places stay what they are.

        Raises ValueError when d is not that of the store.
        """
        if self._shards and vectors.shape[1] != self.dimension:
            raise ValueError(f"vectors of {vectors.shape[1]} numbers, the store {self._folder} holds {self.dimension}")
        stem = f"shard-{_digest(keys, vectors)}"
        for suffix, array in ((_VECTORS, vectors), (_KEYS, keys)):
            temporary = self._folder / f".{stem}{suffix}.{os.getpid()}"
            with temporary.open("wb") as file:
                np.save(file, array, allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._folder / f"{stem}{suffix}")
        first = len(self)
        self._take(self._folder / f"{stem}{_KEYS}", None)
        return np.arange(first, first + len(keys))

    def gather(self, places: Places, target: Path, advance: Advance) -> None:
        """Writes float16 [len(places), d] to a .npy file, row by row from `places` (none -1), chunk by chunk."""
        starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        with rows_file(target, "<f2", (len(places), self.dimension)) as append:
            for first in range(0, len(places), _GATHERED_ROWS):
                chunk = places[first : first + _GATHERED_ROWS]
                order = np.argsort(chunk)  # each shard is read once, from its beginning to its end
                bounds = np.searchsorted(chunk[order], starts)
                out = np.empty((len(chunk), self.dimension), "<f2")
                for shard in np.flatnonzero(np.diff(bounds)):
                    rows = order[bounds[shard] : bounds[shard + 1]]
                    out[rows] = self._shards[shard][chunk[rows] - starts[shard]]
                append(out)
                advance(len(chunk))

    def _take(self, path: Path, fault: str | None) -> None:
        """Makes a shard the last one, or removes it when something is wrong with it."""
        stem = path.name.removesuffix(_KEYS)
        if fault is None:
            keys: Keys = np.load(path, allow_pickle=False)
            vectors: Vectors = np.load(path.with_name(f"{stem}{_VECTORS}"), mmap_mode="r", allow_pickle=False)
            if not self._shards or vectors.shape[1] == self.dimension:
                self._shards.append(vectors)
                self._keys.append(keys)
                self._index = None
                return
            fault = f"it holds vectors of {vectors.shape[1]} numbers, others hold {self.dimension}"
        self.damaged[stem] = f"cannot be used: {fault}"
        path.unlink(missing_ok=True)


class _Index:
    """Keys as two unsigned numbers, sorted by the first: binary search by one number, in sorted order, stays in the
    processor's cache."""

    def __init__(self, keys: Keys) -> None:
        halves = _halves(keys)
        self._order = np.argsort(halves[:, 0])
        self._first, self._second = (np.ascontiguousarray(halves[self._order, at]) for at in (0, 1))

    def find(self, keys: Keys) -> Places:
        """As VectorStore.find."""
        wanted = _halves(keys)
        order = np.argsort(wanted[:, 0])
        first, second = (np.ascontiguousarray(wanted[order, at]) for at in (0, 1))
        at = np.searchsorted(self._first, first)
        places = np.full(len(keys), _NOWHERE, np.int64)
        open_ = np.arange(len(keys))
        while len(open_):  # once, but for keys that share their first half
            open_ = open_[at[open_] < len(self._first)]
            open_ = open_[self._first[at[open_]] == first[open_]]
            same = self._second[at[open_]] == second[open_]
            places[order[open_[same]]] = self._order[at[open_[same]]]
            open_ = open_[~same]
            at[open_] += 1
        return places


def _halves(keys: Keys) -> npt.NDArray[np.uint64]:
    return np.ascontiguousarray(keys).view("<u8").reshape(-1, 2)


def _fault(path: Path) -> str | None:
    """What is wrong with the shard of these keys; None for nothing."""
    stem = path.name.removesuffix(_KEYS)
    beside = path.with_name(f"{stem}{_VECTORS}")
    try:
        keys: Keys = np.load(path, allow_pickle=False)
        vectors: Vectors = np.load(beside, mmap_mode="r", allow_pickle=False)
        if keys.dtype != np.dtype("S16") or vectors.dtype != np.float16 or vectors.ndim != 2 or keys.ndim != 1:
            return f"it holds {keys.dtype} and {vectors.dtype}, expected S16 and float16"
        if len(keys) != len(vectors):
            return f"it holds {len(keys)} keys and vectors of shape {vectors.shape}"
        if _digest_of_file(keys, beside, vectors.nbytes) != stem.removeprefix("shard-"):
            return "its contents are not what was written"
    except (OSError, ValueError, EOFError) as error:
        return str(error)
    return None


def _digest(keys: Keys, vectors: Vectors) -> str:
    digest = hashlib.sha256(keys.tobytes())
    digest.update(np.ascontiguousarray(vectors).data)
    return digest.hexdigest()[:32]


def _digest_of_file(keys: Keys, path: Path, size: int) -> str:
    """As `_digest`, of the last `size` bytes of a file; read, not mapped, so that nothing of it stays resident."""
    digest = hashlib.sha256(keys.tobytes())
    with path.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()[:32]
