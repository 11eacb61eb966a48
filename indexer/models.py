"""The models that an encoder may be made of. Loading brings torch along, encoding by a static model does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from indexer.errors import EncoderError
from indexer.settings import EncoderSettings
from indexer.static_model import StaticModel

if TYPE_CHECKING:
    from PIL.Image import Image
    from sentence_transformers import SentenceTransformer

    from indexer.learn.encoder_precision import Int8Encoder

Floats = npt.NDArray[np.float32]


class Model(Protocol):
    """One copy of a model, used by one thread at a time. Vectors are float32 [m, d] of any length."""

    def encode(self, texts: Sequence[str]) -> Floats:
        """A vector of each text."""

    def encode_images(self, images: Sequence[Image]) -> Floats:
        """A vector of each picture, comparable to those of texts. Raises EncoderError where the model takes none."""


class Transformer:
    """A sentence-transformers model, as torch runs it."""

    def __init__(self, model: SentenceTransformer) -> None:
        self._model = model

    def encode(self, texts: Sequence[str]) -> Floats:
        """One batch."""
        return self._encode(texts)

    def encode_images(self, images: Sequence[Image]) -> Floats:
        """One batch."""
        return self._encode(images)

    def _encode(self, inputs: Sequence[str] | Sequence[Image]) -> Floats:
        given = list(inputs)
        found = self._model.encode(given, batch_size=len(given), convert_to_numpy=True, show_progress_bar=False)
        return np.asarray(found, np.float32)


class Int8Transformer:
    """A tokenizer of its own before an ONNX model that all copies share."""

    def __init__(self, tokenizer: SentenceTransformer, shared: Int8Encoder) -> None:
        self._tokenizer = tokenizer
        self._shared = shared

    def encode(self, texts: Sequence[str]) -> Floats:
        """One batch."""
        return self._shared.encode(self._tokenizer, texts)

    def encode_images(self, images: Sequence[Image]) -> Floats:
        """Raises EncoderError."""
        raise _no_pictures("index.encoder.precision int8")


class Static:
    """A static model, which all copies share."""

    def __init__(self, shared: StaticModel) -> None:
        self._shared = shared

    def encode(self, texts: Sequence[str]) -> Floats:
        """Any number of texts."""
        return self._shared.encode(texts)

    def encode_images(self, images: Sequence[Image]) -> Floats:
        """Raises EncoderError."""
        raise _no_pictures("index.encoder.kind static")


def static_models(folder: Path, copies: int) -> list[Model]:
    """Raises EncoderError."""
    shared = StaticModel(folder)
    return [Static(shared) for _ in range(copies)]


def transformers(folder: Path, settings: EncoderSettings, device: str, copies: int, threads: int) -> list[Model]:
    """So many copies, each of so many threads. Raises EncoderError."""
    import torch  # noqa: PLC0415 - only a build that encodes pays for it
    from safetensors import SafetensorError  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    from transformers.utils import logging  # noqa: PLC0415

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # progress is shown by the job
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(threads)
    try:
        loaded = [SentenceTransformer(str(folder), device=device, local_files_only=True).eval() for _ in range(copies)]
        for model in loaded:
            if settings.max_seq_length is not None:
                model.max_seq_length = settings.max_seq_length
        if settings.precision == "int8":
            from indexer.learn.encoder_precision import Int8Encoder  # noqa: PLC0415 - brings the exporter along

            shared = Int8Encoder(loaded[0], threads)
            return [Int8Transformer(model, shared) for model in loaded]
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        message = f"index.encoder.model {settings.model!r} in {folder} cannot be loaded: {error}"
        raise EncoderError(message) from error
    if settings.images.root is not None and not loaded[0].supports("image"):
        raise _no_pictures(f"index.encoder.model {settings.model!r}")
    return [Transformer(model.bfloat16() if settings.precision == "bf16" else model) for model in loaded]


def _no_pictures(what: str) -> EncoderError:
    return EncoderError(
        f"{what} takes texts alone: a model that takes pictures is expected, or no index.encoder.images.root"
    )
