"""Models that are made in the test, with random weights: nothing is downloaded, and they are loaded in no time."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer  # type: ignore[import-untyped]
from tokenizers.models import WordLevel  # type: ignore[import-untyped]
from tokenizers.pre_tokenizers import Whitespace  # type: ignore[import-untyped]
from tokenizers.processors import TemplateProcessing  # type: ignore[import-untyped]

WORDS = ("thing", "same", "new", "tea", "coffee", "cups", "red", "green")


def make_transformer(parts: Path, target: Path) -> Path:
    """A sentence-transformers model of one layer, vectors of 32 numbers, in `target`."""
    import torch  # noqa: PLC0415 - seconds, and not every test needs it
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer  # noqa: PLC0415
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast  # noqa: PLC0415

    torch.manual_seed(1)
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(("[PAD]", "[UNK]", *WORDS))}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    config = BertConfig(  # type: ignore[no-untyped-call]
        vocab_size=2 + len(WORDS), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32,
    )  # fmt: skip
    BertModel(config).save_pretrained(parts)  # type: ignore[no-untyped-call]
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    ).save_pretrained(parts)
    SentenceTransformer(modules=[Transformer(str(parts)), Pooling(32)], device="cpu").save(str(target))
    return target


def make_clip(parts: Path, target: Path) -> Path:
    """A sentence-transformers model that takes texts and pictures, vectors of 16 numbers, in `target`."""
    import torch  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415
    from sentence_transformers.sentence_transformer.modules import Transformer  # noqa: PLC0415
    from transformers import CLIPConfig, CLIPModel, CLIPProcessor, PreTrainedTokenizerFast  # noqa: PLC0415
    from transformers.models.clip.image_processing_clip import CLIPImageProcessor  # noqa: PLC0415

    torch.manual_seed(1)
    words = ("[PAD]", "[UNK]", "[EOS]", *WORDS)
    tokenizer = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", 2)])
    text = {
        "vocab_size": len(words),
        "max_position_embeddings": 32,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
    }
    layers = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(  # type: ignore[no-untyped-call]
        text_config={**text, **layers}, vision_config={"image_size": 32, "patch_size": 16, **layers}, projection_dim=16
    )
    CLIPModel(config).save_pretrained(parts)
    CLIPProcessor(  # type: ignore[no-untyped-call]
        CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
        PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", model_max_length=32
        ),
    ).save_pretrained(parts)
    SentenceTransformer(modules=[Transformer(str(parts))], device="cpu").save(str(target))
    return target
