"""The teacher that reads: it learns from titles alone, within its bound of pairs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer  # type: ignore[import-untyped]
from tokenizers.models import WordLevel  # type: ignore[import-untyped]
from tokenizers.pre_tokenizers import Whitespace  # type: ignore[import-untyped]

from indexer.learn.cross_encoder import Reader
from indexer.learn.lists import Lists
from indexer.learn.teacher import best_teacher
from tests.learn.some_lists import make_some_lists

KINDS = ("tea", "car", "hat")
WORDS = ("[PAD]", "[UNK]", "[SEP]", "[CLS]", ";", *KINDS, "red", "green", "old")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformer of one layer with random weights."""
    import torch  # noqa: PLC0415 - seconds, and not every test needs it
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast  # noqa: PLC0415

    torch.manual_seed(1)
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    target = tmp_path_factory.mktemp("bert")
    config = BertConfig(  # type: ignore[no-untyped-call]
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    BertModel(config).save_pretrained(target)  # type: ignore[no-untyped-call]
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", sep_token="[SEP]", cls_token="[CLS]"
    ).save_pretrained(target)
    return target


def titles() -> list[str]:
    return [f"{('red', 'green', 'old')[row % 2]} {KINDS[row % 3]}" for row in range(1000)]


def lists_by_kind(count: int, seed: int) -> Lists:
    """What is bought are teas; the question may know whatever it knows."""
    some = make_some_lists(count, seed=seed)
    positive = (some.rows % 3 == 0) & some.present
    return replace(some, positive=positive, targets=np.maximum(1, positive.sum(axis=1)))


def test_a_reader_learns_which_titles_are_bought(folder: Path) -> None:
    past, later = lists_by_kind(160, 1), lists_by_kind(30, 2)
    reader = Reader(titles(), str(folder), rate=3e-3, tokens=32, pairs=600)
    fitted = reader.fit(past)
    scores = fitted.score(later)
    assert scores.shape == later.rows.shape
    assert np.isfinite(scores).all()
    blind = replace(later, positive=np.zeros_like(later.positive))
    np.testing.assert_array_equal(scores, fitted.score(blind))
    name, _, figures = best_teacher([("cross_encoder", fitted)], later)
    assert name == "cross_encoder"
    assert figures[name] > later.ndcg(later.blend_order()).mean() + 0.2


def test_the_same_seed_gives_the_same_reader(folder: Path) -> None:
    lists = lists_by_kind(20, 3)
    reader = Reader(titles(), str(folder), tokens=32)
    np.testing.assert_array_equal(reader.fit(lists).score(lists), reader.fit(lists).score(lists))


def test_what_is_not_read_stands_behind_in_the_order_of_the_blend(folder: Path) -> None:
    lists = lists_by_kind(6, 4)
    scores = Reader(titles(), str(folder), tokens=32, depth=5).fit(lists).score(lists)
    assert (scores[:, :5].min(axis=1) > scores[:, 5]).all()
    assert (np.diff(scores[:, 5:], axis=1) < 0).all()


def test_a_reader_that_cannot_learn_or_has_not_says_so(folder: Path) -> None:
    lists = lists_by_kind(6, 5)
    reader = Reader(titles(), str(folder))
    with pytest.raises(ValueError, match="fit it before"):
        reader.score(lists)
    with pytest.raises(ValueError, match="no question has a candidate"):
        reader.fit(replace(lists, positive=np.zeros_like(lists.positive)))
    with pytest.raises(ValueError, match="no question has a candidate"):
        replace(reader, pairs=3).fit(lists)
