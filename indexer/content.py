"""Pieces of work for an encoder, and what it gives for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.vector_store import Vectors


@dataclass(frozen=True, slots=True)
class Chunk:
    """Contents that are encoded together. `numbers` int64 [m]: their text_no; `images`: of each, paths below the root;
    None: none of them has any."""

    numbers: npt.NDArray[np.int64]
    texts: list[str]
    images: Sequence[Sequence[str]] | None = None


@dataclass(frozen=True, slots=True)
class BrokenImage:
    """A picture that could not be decoded: of which content, and why. Its content is encoded by its text alone."""

    text_no: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Encoding:
    """The vectors of a chunk, float16 [m, d], and what of it was broken."""

    numbers: npt.NDArray[np.int64]
    vectors: Vectors
    broken: tuple[BrokenImage, ...] = ()
