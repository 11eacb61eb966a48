"""The encoder in fewer bits: nearly the same vectors, and a fingerprint of its own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from indexer.encoder import Encoder, fingerprint
from indexer.errors import EncoderError
from indexer.settings import EncoderSettings, Precision
from indexer.vector_store import Vectors
from tests.indexer.tiny_models import WORDS, make_transformer

TEXTS = [f"{first} {second}" * length for length in (1, 2) for first in WORDS for second in WORDS]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_transformer(tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp("transformer"))


def vectors_of(folder: Path, precision: Precision, texts: list[str]) -> Vectors:
    settings = EncoderSettings(model=str(folder), batch_size=16, precision=precision)
    with closing(Encoder(settings, threads=2)) as encoder:
        vectors = encoder.encode(texts)
        assert np.array_equal(vectors, encoder.encode(texts))
        assert encoder.encode(texts[:1]).shape == (1, 32)
    return vectors


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_fewer_bits_give_nearly_the_same_vectors_and_the_same_ones_again(
    transformer: Path, precision: Precision
) -> None:
    whole = vectors_of(transformer, "fp32", TEXTS).astype(np.float32)
    coarse = vectors_of(transformer, precision, TEXTS).astype(np.float32)
    assert np.allclose(np.linalg.norm(coarse, axis=1), 1, atol=2e-3)
    cosines = (whole * coarse).sum(axis=1)
    assert cosines.min() > 0.98
    assert not np.array_equal(whole, coarse)


def test_precision_is_part_of_the_fingerprint_and_fp32_keeps_what_was_stored(transformer: Path) -> None:
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "int8")
    marks = [fingerprint(transformer, None, each) for each in precisions]
    assert len(set(marks)) == 3
    assert marks[0] == fingerprint(transformer, None)
    assert Encoder(EncoderSettings(model=str(transformer), precision="int8"), 1).fingerprint == marks[2]


def test_int8_is_refused_where_it_cannot_run(model: Path, transformer: Path) -> None:
    with pytest.raises(EncoderError, match=r"precision int8 expects a model that takes tensors \[batch, tokens\]"):
        vectors_of(model, "int8", ["thing"])
    settings = EncoderSettings(model=str(transformer), precision="int8", device="cuda")
    with pytest.raises(EncoderError, match="precision int8 runs on the CPU"):
        Encoder(settings, 1).encode(["tea"])
