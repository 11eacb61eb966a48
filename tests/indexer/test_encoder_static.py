"""A static model: distilled once from a transformer, kept, the same bytes again, and mean token vectors by it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file

from indexer.encoder import Encoder
from indexer.errors import EncoderError
from indexer.settings import EncoderSettings, ImageSettings
from indexer.static_model import StaticModel, distilled
from tests.indexer.tiny_models import WORDS, make_transformer

TEXTS = [f"{first} {second}" for first in WORDS for second in WORDS]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_transformer(tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp("transformer"))


def settings_of(teacher: Path, **more: int) -> EncoderSettings:
    return EncoderSettings.model_validate({"kind": "static", "model": str(teacher), "dimensions": 8, **more})


def test_it_is_distilled_once_and_a_later_night_loads_it(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Encoder(settings_of(teacher), 2, tmp_path)) as encoder:
        vectors = encoder.encode(TEXTS)
    assert vectors.shape == (64, 8)
    assert np.allclose(np.linalg.norm(vectors.astype(np.float32), axis=1), 1, atol=1e-3)
    monkeypatch.setattr("indexer.static_model._distil", lambda *given: pytest.fail("distilled again"))
    with closing(Encoder(settings_of(teacher, batch_size=1), 1, tmp_path)) as encoder:
        assert np.array_equal(encoder.encode(TEXTS), vectors)


def test_the_same_teacher_gives_the_same_bytes(teacher: Path, tmp_path: Path) -> None:
    one, two = (distilled(tmp_path / name, teacher, "mark", 8) for name in ("one", "two"))
    files = sorted(path.name for path in one.iterdir())
    assert files == ["model.safetensors", "tokenizer.json"]
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in files)
    assert [path.name for path in one.parent.iterdir()] == ["mark"]


def test_a_text_is_the_mean_of_its_tokens(teacher: Path, tmp_path: Path) -> None:
    folder = distilled(tmp_path, teacher, "mark", 8)
    weights = load_file(folder / "model.safetensors")["embedding.weight"]
    model = StaticModel(folder)
    tea, red, both, none = model.encode(["tea", "red", "red red tea", ""])
    assert np.allclose(both, (2 * red + tea) / 3, atol=1e-6)
    assert none.tolist() == [0.0] * 8
    assert (np.abs(weights - tea).max(axis=1) == 0).sum() == 1


def test_options_and_teacher_are_part_of_the_fingerprint(teacher: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(teacher, other)
    (other / "modules.json").write_text((other / "modules.json").read_text() + "\n")
    marks = {
        Encoder(settings, 1).fingerprint
        for settings in (
            settings_of(teacher),
            settings_of(teacher, dimensions=9),
            settings_of(other),
            EncoderSettings(model=str(teacher)),
        )
    }
    assert len(marks) == 4


def test_a_damaged_static_model_is_named(teacher: Path, tmp_path: Path) -> None:
    folder = distilled(tmp_path, teacher, "mark", 8)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(EncoderError, match=r"mark: expected a static model \(model.safetensors, tokenizer.json\)"):
        StaticModel(folder)


def test_what_a_static_model_cannot_do_is_said_at_start(teacher: Path, tmp_path: Path) -> None:
    for more in ({"precision": "int8"}, {"images": ImageSettings(root=tmp_path)}):
        with pytest.raises(ValidationError, match="kind static is for texts in precision fp32"):
            EncoderSettings.model_validate({"kind": "static", "model": str(teacher), **more})
