"""A static model: one vector for each token, distilled once from a sentence-transformers model; a text is their mean.

    <folder>/<fingerprint>/model.safetensors   embedding.weight float32 [tokens, d]
    <folder>/<fingerprint>/tokenizer.json

Distilling needs torch and half a minute; encoding needs neither.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.errors import EncoderError

_FORMAT = "static v1"
_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer.json"
_TENSOR = "embedding.weight"


def static_fingerprint(teacher: str, dimensions: int) -> str:
    """32 hex digits, of the teacher's fingerprint and the options of the distillation."""
    return hashlib.blake2b(f"{_FORMAT} {teacher} {dimensions}".encode(), digest_size=16).hexdigest()


class StaticModel:
    """What `folder` holds; may be used by several threads at once. Raises EncoderError when it cannot be read."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import load_file  # noqa: PLC0415 - only a build that encodes pays for it
        from tokenizers import Tokenizer  # type: ignore[import-untyped]  # noqa: PLC0415

        try:
            self._weights: npt.NDArray[np.float32] = load_file(folder / _WEIGHTS)[_TENSOR]
            self._tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
        except Exception as error:  # tokenizers raises nothing more exact
            raise EncoderError(f"{folder}: expected a static model ({_WEIGHTS}, {_TOKENIZER}): {error}") from error

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32 [m, d]: the mean of each text's token vectors; 0 for a text without tokens."""
        from scipy.sparse import csr_array  # noqa: PLC0415

        tokens = [each.ids for each in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]
        counts = np.fromiter(map(len, tokens), np.int64, len(tokens))
        columns = np.fromiter(chain.from_iterable(tokens), np.int32, int(counts.sum()))
        weights = np.repeat(np.float32(1) / np.maximum(counts, 1).astype(np.float32), counts)
        ends = np.concatenate([[0], np.cumsum(counts)])
        bags = csr_array((weights, columns, ends), shape=(len(tokens), len(self._weights)))
        return np.asarray(bags @ self._weights, np.float32)


def distilled(folder: Path, teacher: Path, mark: str, dimensions: int) -> Path:
    """The folder of the static model `mark` below `folder`; distilled from `teacher` when it is not there yet.

    Atomic: a killed distillation leaves a hidden folder that nobody reads. Raises EncoderError.
    """
    target = folder / mark
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".distilling-", dir=folder) as temporary:
        made = Path(temporary) / "model"
        made.mkdir()
        _distil(teacher, dimensions, made)
        for path in made.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        try:
            made.rename(target)
        except OSError:  # another build was faster
            if not target.is_dir():
                raise
            shutil.rmtree(made)
    return target


def _distil(teacher: Path, dimensions: int, target: Path) -> None:
    """By one thread: the same bytes each time."""
    import torch  # noqa: PLC0415
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding  # noqa: PLC0415
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # noqa: PLC0415

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _quiet(), threadpool_limits(1):
            made = StaticEmbedding.from_distillation(str(teacher), device="cpu", pca_dims=dimensions)
    except (ImportError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise EncoderError(f"index.encoder.model {teacher} cannot be distilled to a static model: {error}") from error
    finally:
        torch.set_num_threads(threads)
    made.tokenizer.no_truncation()
    made.save(str(target))


@contextmanager
def _quiet() -> Iterator[None]:
    """The library warns of options that it gives itself, and draws a bar of its own."""
    logger = logging.getLogger("sentence_transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
