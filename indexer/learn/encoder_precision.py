"""The content encoder in int8: a sentence-transformers model as ONNX, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from indexer.errors import EncoderError
from indexer.learn.onnx_file import cpu_session, onnx_bytes
from indexer.learn.quantise import int8_by_batch

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_EXAMPLE = ["one text of some words", "another"]
_OUTPUT = "vectors"


def encoder_bytes(model: SentenceTransformer) -> bytes:
    """The whole model as ONNX: token tensors [batch, tokens] -> vectors float32 [batch, d].

    Raises EncoderError when its texts are not made into tensors of that shape, as those of a transformer are.
    """
    features = _tensors(model, _EXAMPLE)
    if not features or any(each.ndim != 2 or len(each) != len(_EXAMPLE) for each in features.values()):
        raise EncoderError(
            "index.encoder.precision int8 expects a model that takes tensors [batch, tokens], as transformers do; "
            f"this one takes { {name: tuple(each.shape) for name, each in features.items()} }"
        )
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", max=model.max_seq_length)
    return onnx_bytes(
        _Vectors(model, list(features)),
        tuple(features.values()),
        list(features),
        [_OUTPUT],
        {name: {0: batch, 1: tokens} for name in features},
    )


class Int8Encoder:
    """Weights in int8 by output channel, activations in uint8 with a range by batch; runs on the CPU, in any thread.

    A vector depends a little on the texts of its batch, since they share the ranges.
    """

    def __init__(self, model: SentenceTransformer, threads: int) -> None:
        self.model = int8_by_batch(encoder_bytes(model))
        self._session = cpu_session(self.model, threads)

    def encode(self, tokenizer: SentenceTransformer, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32 [len(texts), d]; `tokenizer` is not to be shared by threads."""
        features = _tensors(tokenizer, texts)
        wanted = [each.name for each in self._session.get_inputs()]
        (vectors,) = self._session.run([_OUTPUT], {name: features[name].numpy() for name in wanted})
        return np.asarray(vectors, np.float32)


class _Vectors(nn.Module):
    def __init__(self, model: SentenceTransformer, names: list[str]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, first: Tensor, second: Tensor | None = None, third: Tensor | None = None) -> Tensor:
        """The sentence embeddings of a batch; the exporter wants arguments one by one."""
        given = (each for each in (first, second, third) if each is not None)
        found = self.model(dict(zip(self.names, given, strict=True)))
        return torch.as_tensor(found["sentence_embedding"])


def _tensors(model: SentenceTransformer, texts: Sequence[str]) -> dict[str, Tensor]:
    features: dict[str, Any] = model.preprocess(list(texts))
    return {name: each for name, each in features.items() if isinstance(each, Tensor)}
