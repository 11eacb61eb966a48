"""FAISS and ONNX Runtime on a CUDA device, for the job and the service. The extra `gpu` brings builds that can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import faiss
import onnxruntime as ort

PROVIDER = "CUDAExecutionProvider"
_PINNED = 64 << 20
_INSTEAD = "install feedline[gpu] in place of feedline[cpu] (pip uninstall faiss-cpu onnxruntime first)"


class NoCuda(Exception):
    """What was asked of a CUDA device cannot be done here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Makers:
    """How indexes come to a device. All that one makes may be used by one thread at a time.

    flat(d)      an empty exact index by inner product, of float16 vectors
    nearest(d)   an empty exact index by distance, of float32 vectors
    to_device    a copy of an index of the CPU; raises RuntimeError for kinds that FAISS does not have there
    """

    flat: Callable[[int], faiss.Index]
    nearest: Callable[[int], faiss.Index]
    to_device: Callable[[faiss.Index], faiss.Index]


def open_device(device: int, *, temp_bytes: int) -> Makers:
    """The device of that number; one search or addition takes `temp_bytes` of its memory, beside the indexes.

    Raises NoCuda when FAISS or the machine lacks it.
    """
    require_faiss(device)
    resources = faiss.StandardGpuResources()
    resources.setTempMemory(temp_bytes)
    resources.setPinnedMemory(_PINNED)
    options = faiss.GpuClonerOptions()
    options.useFloat16 = True
    options.use_cuvs = False

    def config(half: bool) -> faiss.GpuIndexFlatConfig:
        out = faiss.GpuIndexFlatConfig()
        out.device = device
        out.useFloat16 = half
        out.use_cuvs = False
        return out

    def flat(dimension: int) -> faiss.Index:
        return faiss.GpuIndexFlatIP(resources, dimension, config(half=True))

    def nearest(dimension: int) -> faiss.Index:
        return faiss.GpuIndexFlatL2(resources, dimension, config(half=False))

    return Makers(flat, nearest, lambda index: faiss.index_cpu_to_gpu(resources, device, index, options))


def require_faiss(device: int) -> None:
    """Raises NoCuda when FAISS has no GPU build here, or sees no such device."""
    if not hasattr(faiss, "StandardGpuResources"):
        raise NoCuda(f"the installed FAISS is built without CUDA: {_INSTEAD}")
    count = faiss.get_num_gpus()
    if device >= count:
        seen = "no device (nvidia-smi tells whether the driver runs)" if count == 0 else f"devices 0 to {count - 1}"
        raise NoCuda(f"FAISS sees {seen}; device {device} is expected")


def require_onnx() -> None:
    """Raises NoCuda when ONNX Runtime has no CUDA build here. Whether a device is there, opening a model tells."""
    if PROVIDER not in ort.get_available_providers():
        raise NoCuda(f"the installed ONNX Runtime is built without CUDA: {_INSTEAD}")
