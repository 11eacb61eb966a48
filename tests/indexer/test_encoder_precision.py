"""The encoder in fewer bits: nearly the same vectors, and a fingerprint of its own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer  # type: ignore[import-untyped]
from tokenizers.models import WordLevel  # type: ignore[import-untyped]
from tokenizers.pre_tokenizers import Whitespace  # type: ignore[import-untyped]

from indexer.encoder import Encoder, fingerprint
from indexer.errors import EncoderError
from indexer.settings import EncoderSettings, Precision
from indexer.vector_store import Vectors

WORDS = ("thing", "same", "new", "tea", "coffee", "cups", "red", "green")
TEXTS = [f"{first} {second}" * length for length in (1, 2) for first in WORDS for second in WORDS]


@pytest.fixture(scope="module")
def transformer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer of one layer with random weights, vectors of 32 numbers."""
    import torch  # noqa: PLC0415 - seconds, and not every test needs it
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast  # noqa: PLC0415

    torch.manual_seed(1)
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(("[PAD]", "[UNK]", *WORDS))}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder = tmp_path_factory.mktemp("bert")
    config = BertConfig(  # type: ignore[no-untyped-call]
        vocab_size=2 + len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)  # type: ignore[no-untyped-call]
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    ).save_pretrained(folder)
    parts = [Transformer(str(folder)), Pooling(32)]
    target = tmp_path_factory.mktemp("transformer")
    SentenceTransformer(modules=parts, device="cpu").save(str(target))
    return target


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
