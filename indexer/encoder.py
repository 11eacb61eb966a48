"""The content encoder: a model by its settings turns contents into vectors of length 1.

Its fingerprint is found without importing torch, so that a build whose vectors are all stored stays light.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from indexer.content import BrokenImage, Chunk, Encoding
from indexer.device import device_of
from indexer.errors import EncoderError
from indexer.images import ImageError, Pictures
from indexer.models import Model, static_models, transformers
from indexer.settings import EncoderSettings, Precision
from indexer.static_model import distilled, static_fingerprint
from indexer.text import TEMPLATE
from indexer.vector_store import Vectors

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
_FORMAT = "v2"
_COPIES = 4
_WAITING = 2


class Encoder:
    """A model by its settings; nothing is loaded before the first text. To be closed.

    On a CPU, up to four copies of the model encode side by side: short texts leave little for the threads of one
    batch to share, and waiting for each other costs them most where other work runs on the machine. A static model is
    distilled into `static` when it is not there; that folder is needed for this kind alone.
    """

    def __init__(self, settings: EncoderSettings, threads: int, static: Path | None = None) -> None:
        self._settings = settings
        self._copies = min(threads, _COPIES)
        self._threads = max(1, threads // self._copies)
        self._static = static
        self._folder = locate(settings.model)
        self.fingerprint = encoder_fingerprint(settings, self._folder)
        self._models: SimpleQueue[Model] = SimpleQueue()
        self._workers: ThreadPoolExecutor | None = None

    def encode(self, texts: Sequence[str]) -> Vectors:
        """float16 [len(texts), d], each of length 1 (0 for a text without tokens). Raises EncoderError."""
        size = self._settings.chunk
        chunks = (
            Chunk(np.arange(first, min(first + size, len(texts))), list(texts[first : first + size]))
            for first in range(0, len(texts), size)
        )
        return np.concatenate([each.vectors for each in self.encode_chunks(chunks)])

    def encode_chunks(self, chunks: Iterable[Chunk]) -> Iterator[Encoding]:
        """Chunk by chunk, in their order; two a copy of the model wait at most. Raises EncoderError."""
        waiting: deque[Future[Encoding]] = deque()
        try:
            for chunk in chunks:
                if self._workers is None:
                    self._workers = self._load()
                waiting.append(self._workers.submit(self._encode, chunk))
                if len(waiting) > _WAITING * self._copies:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()

    def close(self) -> None:
        """Ends the threads."""
        if self._workers is not None:
            self._workers.shutdown()

    def _encode(self, chunk: Chunk) -> Encoding:
        model = self._models.get()  # its tokenizer is not to be shared by threads
        try:
            vectors = _of_length_one(model.encode(chunk.texts))
            broken: tuple[BrokenImage, ...] = ()
            if chunk.images is not None:
                vectors, broken = self._with_pictures(model, chunk, vectors)
        finally:
            self._models.put(model)
        if not np.isfinite(vectors).all():
            first = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise EncoderError(f"{self._settings.model} gave NaN or infinity for the text {chunk.texts[first][:80]!r}")
        return Encoding(chunk.numbers, vectors.astype(np.float16), broken)

    def _with_pictures(
        self, model: Model, chunk: Chunk, vectors: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], tuple[BrokenImage, ...]]:
        """The weighted mean of each text's vector and that of its pictures; a video counts as one picture, the mean of
        its frames. A content with a picture that cannot be decoded keeps the vector of its text."""
        pictures = Pictures(self._settings.images)
        weight = np.float32(self._settings.images.weight)
        mixed, broken = vectors.copy(), []
        for at, paths in enumerate(chunk.images or ()):
            try:
                seen = [_mean(_of_length_one(model.encode_images(pictures.frames(path)))) for path in paths]
            except ImageError as error:
                broken.append(BrokenImage(int(chunk.numbers[at]), ", ".join(paths), str(error)))
                continue
            if seen:
                mixed[at] = (1 - weight) * vectors[at] + weight * _mean(np.stack(seen))
        return _of_length_one(mixed), tuple(broken)

    def _load(self) -> ThreadPoolExecutor:
        settings = self._settings
        if settings.kind == "static":
            if self._static is None:
                raise EncoderError("index.encoder.kind static: a folder for the distilled model is expected")
            folder = distilled(self._static, self._folder, self.fingerprint, settings.dimensions)
            models: Sequence[Model] = static_models(folder, self._copies)
        else:
            if settings.precision == "int8" and settings.device == "cuda":
                raise EncoderError(
                    "index.encoder.precision int8 runs on the CPU: device cpu or auto is expected, not cuda"
                )
            device = "cpu" if settings.precision == "int8" else device_of(settings.device)
            self._copies = 1 if device == "cuda" else self._copies
            models = transformers(self._folder, settings, device, self._copies, self._threads)
        for model in models:
            self._models.put(model)
        return ThreadPoolExecutor(self._copies, "encoder")


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


def encoder_fingerprint(settings: EncoderSettings, folder: Path) -> str:
    """32 hex digits of all that the vectors depend on: the model in `folder` and the settings. Raises EncoderError.

    Not the versions of the libraries: their vectors differ in the last bits only.
    """
    mark = fingerprint(folder, settings.max_seq_length, settings.precision)
    if settings.kind == "static":
        return static_fingerprint(mark, settings.dimensions)
    if settings.images.root is not None:
        return hashlib.blake2b(f"{mark} pictures {settings.images.weight}".encode(), digest_size=16).hexdigest()
    return mark


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


def _mean(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """float32 [d] of length 1, of vectors [m, d]."""
    return np.asarray(_of_length_one(vectors.mean(axis=0, keepdims=True))[0])


def _of_length_one(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)
