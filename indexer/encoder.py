"""The content encoder: a sentence-transformers model turns texts into vectors of length 1.

Its fingerprint is found without importing torch, so that a build whose vectors are all stored stays light.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from indexer.device import device_of
from indexer.errors import EncoderError
from indexer.settings import EncoderSettings, Precision
from indexer.text import TEMPLATE
from indexer.vector_store import Vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from indexer.learn.encoder_precision import Int8Encoder

_NOT_LOADED = (
    "*.md",
    ".*",
    "*.bin",
    "*.h5",
    "*.ot",
    "*.msgpack",
    "*.onnx",
    "*.pt",
    "*.pkl",
    "onnx/*",
    "openvino/*",
    "data_config.json",
    "train_script.py",
)
"""What a model folder may hold beside the model: other formats of the weights (some of them pickles) and prose."""
_FORMAT = "v1"
_COPIES = 4


class Encoder:
    """A model by its settings; nothing is loaded before the first `encode`. To be closed.

    On a CPU, up to four copies of the model encode batches side by side: short texts leave little for the threads of
    one batch to share, and waiting for each other costs them most where other work runs on the machine.
    """

    def __init__(self, settings: EncoderSettings, threads: int) -> None:
        self._settings = settings
        self._threads = threads
        self._folder = locate(settings.model)
        self.fingerprint = fingerprint(self._folder, settings.max_seq_length, settings.precision)
        self._models: SimpleQueue[SentenceTransformer] = SimpleQueue()
        self._int8: Int8Encoder | None = None
        self._workers: ThreadPoolExecutor | None = None

    def encode(self, texts: Sequence[str]) -> Vectors:
        """float16 [len(texts), d], each of length 1 (0 for a text without tokens). Raises EncoderError."""
        if self._workers is None:
            self._workers = self._load()
        size = self._settings.batch_size
        batches = [list(texts[first : first + size]) for first in range(0, len(texts), size)]
        vectors = np.concatenate(list(self._workers.map(self._encode_batch, batches)))
        if not np.isfinite(vectors).all():
            first = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise EncoderError(f"{self._settings.model} gave NaN or infinity for the text {texts[first][:80]!r}")
        return vectors

    def close(self) -> None:
        """Ends the threads."""
        if self._workers is not None:
            self._workers.shutdown()

    def _encode_batch(self, texts: list[str]) -> Vectors:
        model = self._models.get()  # its tokenizer is not to be shared by threads
        try:
            if self._int8 is not None:
                return _of_length_one(self._int8.encode(model, texts))
            vectors = model.encode(
                texts,
                batch_size=len(texts),
                normalize_embeddings=True,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        finally:
            self._models.put(model)
        if self._settings.precision == "fp32":
            return np.asarray(vectors).astype(np.float16)
        return _of_length_one(np.asarray(vectors, np.float32))

    def _load(self) -> ThreadPoolExecutor:
        import torch  # noqa: PLC0415 - only a build that encodes pays for it
        from safetensors import SafetensorError  # noqa: PLC0415
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415
        from transformers.utils import logging as transformers_logging  # noqa: PLC0415

        transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # progress is shown by the job
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        wanted, precision = self._settings.device, self._settings.precision
        if precision == "int8":
            if wanted == "cuda":
                raise EncoderError(
                    "index.encoder.precision int8 runs on the CPU: device cpu or auto is expected, not cuda"
                )
            wanted = "cpu"
        device = device_of(wanted)
        copies = 1 if device == "cuda" else min(self._threads, _COPIES)
        torch.set_num_threads(max(1, self._threads // copies))
        try:
            models = [
                SentenceTransformer(str(self._folder), device=device, local_files_only=True).eval()
                for _ in range(copies)
            ]
            for model in models:
                if self._settings.max_seq_length is not None:
                    model.max_seq_length = self._settings.max_seq_length
                self._models.put(model.bfloat16() if precision == "bf16" else model)
            if precision == "int8":
                from indexer.learn.encoder_precision import Int8Encoder  # noqa: PLC0415 - brings the exporter along

                self._int8 = Int8Encoder(models[0], max(1, self._threads // copies))
        except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
            message = f"index.encoder.model {self._settings.model!r} in {self._folder} cannot be loaded: {error}"
            raise EncoderError(message) from error
        return ThreadPoolExecutor(copies, "encoder")


def locate(model: str) -> Path:
    """The folder of a model: a local one, or that of the hub's cache, into which it is downloaded when it is absent.

    HF_HUB_OFFLINE and HF_HOME are respected. Raises EncoderError.
    """
    local = Path(model).expanduser()
    if local.is_dir():
        return local
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - not needed for a local folder

    with suppress(OSError, ValueError):  # not in the cache
        return Path(snapshot_download(model, local_files_only=True))
    try:
        return Path(snapshot_download(model, ignore_patterns=list(_NOT_LOADED)))
    except (OSError, ValueError) as error:
        raise EncoderError(
            f"index.encoder.model {model!r} is neither a folder nor a hub model within reach: {error}"
        ) from error


def fingerprint(folder: Path, max_seq_length: int | None, precision: Precision = "fp32") -> str:
    """32 hex digits: the model's files, the length at which texts are cut, the version of the text template, precision.

    Raises EncoderError when the folder holds no weights in safetensors.
    """
    lowered = "" if precision == "fp32" else f" {precision}"
    digest = hashlib.blake2b(f"{_FORMAT} {TEMPLATE} {max_seq_length}{lowered}".encode(), digest_size=16)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    loaded = [path for path in files if not any(path.match(pattern) for pattern in _NOT_LOADED)]
    if not any(path.suffix == ".safetensors" for path in loaded):
        raise EncoderError(f"{folder}: expected a sentence-transformers model with weights in .safetensors")
    for path in loaded:
        with (folder / path).open("rb") as file:
            content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).digest()
        digest.update(str(path).encode() + b"\0" + content)
    return digest.hexdigest()


def _of_length_one(vectors: npt.NDArray[np.float32]) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float16)
