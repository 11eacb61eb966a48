"""A model that is made in the test: words and numbers with random vectors, a few milliseconds to load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer  # type: ignore[import-untyped]
from tokenizers.models import WordLevel  # type: ignore[import-untyped]
from tokenizers.pre_tokenizers import Whitespace  # type: ignore[import-untyped]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sentence-transformers model of 32 numbers a vector, weights in safetensors."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - seconds, and not every test needs it
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding  # noqa: PLC0415

    words = ["[UNK]", ".", "thing", "same", "new", "tea", "coffee", "cups", *map(str, range(3000))]
    vocabulary = {word: at for at, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    weights = np.random.default_rng(1).standard_normal((len(words), 32)).astype(np.float32)
    folder = tmp_path_factory.mktemp("model")
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu").save(str(folder))
    return folder
