"""vectors.npy for FAISS, without a copy: the numbers that the ranker gathers are those that candidates are scored by.

FAISS reads an index out of memory and keeps only a view of its codes (`ZeroCopyIOReader`). The file is mapped
copy-on-write, so the head that FAISS expects before the numbers is written there in the first page of this process's
own, in place of NumPy's; the file stays as it is, and the pages of numbers are the file's.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt

Half = npt.NDArray[np.float16]
_CHUNK_ROWS = 65_536
_COUNT = slice(8, 16)
"""Where the head has the number of vectors; its last 8 bytes are the number of bytes that follow."""


def map_vectors(path: Path) -> Half:
    """float16 [n, d] of a .npy file, read where it is needed. Raises OSError, ValueError."""
    vectors: Half = np.asarray(np.load(path, mmap_mode="c", allow_pickle=False))
    vectors.setflags(write=False)
    return vectors


def half_index(vectors: Half) -> faiss.Index:
    """An exact index by inner product over float16 [n, d]: a view of those of `map_vectors`, of others a copy.

    A view must not outlive its vectors.
    """
    empty = faiss.IndexScalarQuantizer(vectors.shape[1], faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    empty.train(np.zeros((1, vectors.shape[1]), np.float32))
    head = bytearray(faiss.serialize_index(empty).tobytes())
    if not vectors.size or not _has_room_before(vectors, len(head)):
        for start in range(0, len(vectors), _CHUNK_ROWS):
            empty.add_sa_codes(np.ascontiguousarray(vectors[start : start + _CHUNK_ROWS]).view(np.uint8))
        return empty
    head[_COUNT] = struct.pack("<q", len(vectors))
    head[-8:] = struct.pack("<Q", vectors.nbytes)
    first = vectors.ctypes.data - len(head)
    ctypes.memmove(first, bytes(head), len(head))
    whole = np.ctypeslib.as_array((ctypes.c_uint8 * (len(head) + vectors.nbytes)).from_address(first))
    reader = faiss.ZeroCopyIOReader(faiss.swig_ptr(whole), whole.nbytes)  # type: ignore[attr-defined]
    return faiss.read_index(reader)


def _has_room_before(vectors: Half, length: int) -> bool:
    """Whether they are the whole of a file that is mapped copy-on-write, with as many bytes before them."""
    owner: object = vectors
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    if not isinstance(owner, np.memmap) or owner.mode != "c" or owner.offset < length:
        return False
    return bool(vectors.flags.c_contiguous and owner.ctypes.data == vectors.ctypes.data)
