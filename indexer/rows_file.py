"""A .npy file that is written block by block. Not memory-mapped: a full disk is an error then, not a SIGBUS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


@contextmanager
def rows_file(path: Path, dtype: npt.DTypeLike, shape: tuple[int, int]) -> Iterator[Callable[[npt.NDArray[Any]], None]]:
    """A function that appends rows [., shape[1]] to the file. Raises ValueError when not shape[0] of them came."""
    kind = np.dtype(dtype)
    written = 0
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)

        def append(rows: npt.NDArray[Any]) -> None:
            nonlocal written
            if rows.shape[1:] != shape[1:]:
                raise ValueError(f"{path.name}: rows of {rows.shape[1:]}, expected {shape[1:]}")
            file.write(np.ascontiguousarray(rows, kind).data)
            written += len(rows)

        yield append
    if written != shape[0]:
        raise ValueError(f"{path.name}: {written} rows, expected {shape[0]}")
