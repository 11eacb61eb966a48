"""A device's thread over indexes of the CPU that keep what a device keeps, float16; and what a real device needs."""

from __future__ import annotations

import faiss
import pytest

from indexer.contract.cuda import Makers, NoCuda, require_faiss
from services.feed.gpu import Gpu


def makers_on_the_cpu() -> Makers:
    """What a device is asked for, done by the CPU."""

    def flat(dimension: int) -> faiss.Index:
        return faiss.IndexScalarQuantizer(dimension, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)

    def clone(index: faiss.Index) -> faiss.Index:
        kinds = (
            faiss.IndexPreTransform
            | faiss.IndexFlat
            | faiss.IndexIVFFlat
            | faiss.IndexIVFScalarQuantizer
            | faiss.IndexIVFPQ
        )
        if not isinstance(index, kinds):
            raise RuntimeError("This index type is not implemented on GPU.")  # noqa: TRY004 - as FAISS does
        return faiss.clone_index(index)

    return Makers(flat, faiss.IndexFlatL2, clone)


def on_the_cpu() -> Gpu:
    """All but CUDA: the thread, the calls that are handed to it, the freeing."""
    return Gpu(makers_on_the_cpu)


def skip_without_cuda() -> None:
    """Skips the test, saying what is missing."""
    try:
        require_faiss(0)
    except NoCuda as error:
        pytest.skip(str(error))
