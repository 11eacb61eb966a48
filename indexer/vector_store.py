"""Content vectors of all builds, kept by (encoder fingerprint, content hash).

    <folder>/<fingerprint>/shard-<digest>.vectors.npy   float16 [m, d]
    <folder>/<fingerprint>/shard-<digest>.keys.npy      bytes S16 [m], the content hash of each vector

A shard is written to temporary names and renamed, its keys last: without keys there is no shard. The digest is that
of both arrays, so that a damaged shard is recognised, removed and encoded again. Shards are never changed.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.progress import Advance
from indexer.rows_file import rows_file
from indexer.text import Keys

Vectors = npt.NDArray[np.float16]
Places = npt.NDArray[np.int64]
_KEYS = ".keys.npy"
_VECTORS = ".vectors.npy"
_NOWHERE = -1
_GATHERED_ROWS = 65_536


class VectorStore:
    """The shards of one encoder. `damaged` names those that were removed, and why. 16 bytes a vector in memory."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder / fingerprint
        self._folder.mkdir(parents=True, exist_ok=True)
        self._shards: list[Vectors] = []
        self.damaged: dict[str, str] = {}
        keys = [self._open(path) for path in sorted(self._folder.glob(f"shard-*{_KEYS}"))]
        self._keys: Keys = np.concatenate([np.empty(0, "S16"), *keys])
        self._sort()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def dimension(self) -> int:
        """d of the vectors; 0 while there are none."""
        return int(self._shards[0].shape[1]) if self._shards else 0

    def find(self, keys: Keys) -> Places:
        """int64 [t]: where the vector of each key is, to be given to `gather`; -1 when it is not stored."""
        if len(self._keys) == 0:
            return np.full(len(keys), _NOWHERE, np.int64)
        at = np.searchsorted(self._keys, keys, sorter=self._order)
        nearest = self._order[np.minimum(at, len(self._order) - 1)]
        return np.where(self._keys[nearest] == keys, nearest, _NOWHERE)

    def add(self, keys: Keys, vectors: Vectors) -> None:
        """Stores float16 [m, d] under S16 [m], durably; raises ValueError when d is not that of the store."""
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
        self._keys = np.concatenate([self._keys, self._open(self._folder / f"{stem}{_KEYS}")])
        self._sort()

    def gather(self, places: Places, target: Path, advance: Advance) -> None:
        """Writes float16 [len(places), d] to a .npy file, row by row from `places` (none -1), chunk by chunk."""
        starts = np.cumsum([0, *(len(shard) for shard in self._shards)])
        with rows_file(target, "<f2", (len(places), self.dimension)) as append:
            for first in range(0, len(places), _GATHERED_ROWS):
                chunk = places[first : first + _GATHERED_ROWS]
                out = np.empty((len(chunk), self.dimension), "<f2")
                shard_of = np.searchsorted(starts, chunk, side="right") - 1
                for shard in np.unique(shard_of):
                    rows = np.flatnonzero(shard_of == shard)
                    out[rows] = self._shards[shard][chunk[rows] - starts[shard]]
                append(out)
                advance(len(chunk))

    def _sort(self) -> None:
        self._order = np.argsort(self._keys, kind="stable")

    def _open(self, path: Path) -> Keys:
        """The keys of a shard, whose vectors become the last of `_shards`; no keys when it is damaged."""
        stem = path.name.removesuffix(_KEYS)
        try:
            keys: Keys = np.load(path, allow_pickle=False)
            vectors: Vectors = np.load(path.with_name(f"{stem}{_VECTORS}"), mmap_mode="r", allow_pickle=False)
            _require_sound(keys, vectors, stem.removeprefix("shard-"), self.dimension)
        except (OSError, ValueError, EOFError) as error:
            self.damaged[stem] = f"cannot be used: {error}"
            path.unlink(missing_ok=True)
            return np.empty(0, "S16")
        self._shards.append(vectors)
        return keys


def _require_sound(keys: Keys, vectors: Vectors, digest: str, dimension: int) -> None:
    if keys.dtype != np.dtype("S16") or vectors.dtype != np.float16 or vectors.ndim != 2 or keys.ndim != 1:
        raise ValueError(f"it holds {keys.dtype} and {vectors.dtype}, expected S16 and float16")
    if len(keys) != len(vectors) or (dimension and vectors.shape[1] != dimension):
        raise ValueError(f"it holds {len(keys)} keys and vectors of shape {vectors.shape}")
    if _digest(keys, vectors) != digest:
        raise ValueError("its contents are not what was written")


def _digest(keys: Keys, vectors: Vectors) -> str:
    digest = hashlib.blake2b(keys.tobytes(), digest_size=16)
    for first in range(0, len(vectors), _GATHERED_ROWS):
        digest.update(vectors[first : first + _GATHERED_ROWS].tobytes())
    return digest.hexdigest()
