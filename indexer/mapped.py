"""Memory-mapped arrays that were looked at whole: their pages count as resident memory until they are let go."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


def let_go(array: npt.NDArray[Any]) -> None:
    """Takes the pages of a memory-mapped array, or of a view of one, out of this process; they are read again from the
    file, or the system's cache of it, when they are needed. An array in memory stays as it is."""
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)
