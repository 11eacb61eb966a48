"""Items with pictures: encoded with their text, again when a byte of them changes, and never a way out of the root."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.catalogue import load_catalogue
from indexer.contract.snapshot import current_id
from indexer.encoding import Encoded, encode_items
from indexer.errors import EncoderError, SettingsError
from indexer.images import ImageError, Pictures, set_aside_broken
from indexer.job import build
from indexer.progress import Silent, Stages
from indexer.quarantine import Quarantine
from indexer.settings import CatalogueColumns, CatalogueSettings, EncoderSettings, ImageSettings, IndexSettings
from indexer.vector_store import Vectors
from tests.indexer.shop import NOW, quarantined, scratch, write
from tests.indexer.tiny_models import make_clip

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clip(tmp_path_factory.mktemp("parts"), tmp_path_factory.mktemp("clip"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A picture of each colour, a video of two frames, and a picture outside of the root."""
    folder = tmp_path / "pictures"
    (folder / "video").mkdir(parents=True)
    for name, colour in (("red.png", "red"), ("blue.jpg", "blue"), ("video/1.png", "red"), ("video/2.png", "blue")):
        save(folder / name, colour)
    save(tmp_path / "outside.png", "green")
    return folder


def save(path: Path, colour: str, size: tuple[int, int] = (40, 32)) -> None:
    Image.new("RGB", size, colour).save(path)


def night(
    tmp_path: Path, clip: Path, items: Sequence[Mapping[str, Any]], **images: Any
) -> tuple[Encoded, Vectors, list[tuple[int, str, str]]]:
    """Loads and encodes the items, each "tea" unless it says otherwise; what was put aside."""
    rows = [{"item_id": f"i{at}", "title": "tea", **item} for at, item in enumerate(items)]
    source = write(tmp_path / "items.jsonl", rows)
    settings = EncoderSettings(
        model=str(clip), images=ImageSettings.model_validate({"root": tmp_path / "pictures", **images})
    )
    (tmp_path / "quarantine.jsonl").unlink(missing_ok=True)
    quarantine = Quarantine(tmp_path / "quarantine.jsonl")
    with scratch(tmp_path / "out") as work:
        found = load_catalogue(
            work, source, CatalogueSettings(max_bad_share=0), quarantine, lambda rows: None, settings.images, 2
        )
        target = work.folder / "content.npy"
        encoded = encode_items(
            work, Stages(Silent()), settings, tmp_path / "vectors", target,
            items=found.items, texts=found.texts, threads=1,
        )  # fmt: skip
        if encoded.broken:
            set_aside_broken(work, quarantine, found.files, encoded.broken)
        return encoded, np.load(target), quarantined(quarantine)


def test_a_picture_is_part_of_the_content_and_a_video_is_the_mean_of_its_frames(
    clip: Path, tmp_path: Path, root: Path
) -> None:
    items = [{}, {"images": ["red.png"]}, {"images": ["blue.jpg"]}, {"images": ["video"]}, {"images": ["red.png"]}]
    encoded, vectors, aside = night(tmp_path, clip, items, weight=1)
    assert (encoded.encoded, encoded.first_rows.tolist(), aside) == (4, [0, 1, 2, 3], [])
    text, red, blue, video, again = vectors.astype(np.float32)
    assert np.array_equal(red, again)
    assert not np.allclose(text, red, atol=0.05)
    mean = (red + blue) / np.linalg.norm(red + blue)
    assert np.allclose(video, mean, atol=5e-3), "a JPEG of one colour is nearly that of a PNG"


def test_text_and_pictures_are_weighed(clip: Path, tmp_path: Path, root: Path) -> None:
    items = [{}, {"images": ["red.png"]}]
    _, (text, only), _ = night(tmp_path, clip, items, weight=1)
    _, (_, mixed), _ = night(tmp_path, clip, items, weight=0.25)
    wanted = 0.75 * text.astype(np.float32) + 0.25 * only.astype(np.float32)
    assert np.allclose(mixed, wanted / np.linalg.norm(wanted), atol=2e-3)


def test_a_changed_picture_is_encoded_again_and_a_renamed_one_is_not(clip: Path, tmp_path: Path, root: Path) -> None:
    items: list[dict[str, Any]] = [{"images": ["red.png"]}, {"images": ["blue.jpg", "video"]}, {"title": "cups"}]
    assert night(tmp_path, clip, items)[0].encoded == 3
    assert night(tmp_path, clip, items)[0].encoded == 0
    (root / "red.png").rename(root / "rouge.png")
    assert night(tmp_path, clip, [{"images": ["rouge.png"]}, *items[1:]])[0].encoded == 0
    save(root / "video" / "2.png", "green")
    assert night(tmp_path, clip, [{"images": ["rouge.png"]}, *items[1:]])[0].encoded == 1


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("https://example.com/red.png", "is an address; a path below index.encoder.images.root is expected"),
        ("data:image/png;base64,AAAA", "is an address; a path below index.encoder.images.root is expected"),
        ("/etc/hostname", "is an absolute path; one below index.encoder.images.root is expected"),
        ("../outside.png", "leads out of index.encoder.images.root"),
        ("link.png", "leads out of index.encoder.images.root"),
        ("linked/outside.png", "leads out of index.encoder.images.root"),
        ("gone.png", "is no file or folder"),
        ("nothing", "is a folder without pictures"),
        ("text.png", "is none of JPEG, PNG, WEBP, GIF, BMP"),
        ("loop", "is no path: "),
        ("large.png", "has more pixels than index.encoder.images.max_pixels, 10,000"),
        ("heavy.png", "is larger than index.encoder.images.max_bytes, 20,000"),
    ],
)
def test_what_cannot_be_used_is_named_and_the_item_keeps_its_text(
    clip: Path, tmp_path: Path, root: Path, path: str, reason: str
) -> None:
    (root / "link.png").symlink_to(tmp_path / "outside.png")
    (root / "linked").symlink_to(tmp_path)
    (root / "loop").symlink_to(root / "loop")
    (root / "nothing").mkdir()
    (root / "text.png").write_text("no picture")
    save(root / "large.png", "red", (200, 100))
    (root / "heavy.png").write_bytes((root / "red.png").read_bytes() + bytes(20_000))
    encoded, vectors, aside = night(tmp_path, clip, [{}, {"images": [path]}], max_pixels=10_000, max_bytes=20_000)
    assert encoded.encoded == 1
    assert np.array_equal(vectors[0], vectors[1])
    ((row, field, why),) = aside
    assert (row, field) == (2, "images")
    assert why.startswith(reason)


def test_a_picture_that_breaks_off_is_found_when_it_is_decoded_each_night(
    clip: Path, tmp_path: Path, root: Path
) -> None:
    whole = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(whole, "PNG")
    (root / "broken.png").write_bytes(whole.getvalue()[:3000])
    items = [{}, {"images": ["broken.png"]}, {"images": ["red.png", "broken.png"]}, {"images": ["red.png"]}]
    for encodes in (4, 2):
        encoded, vectors, aside = night(tmp_path, clip, items)
        assert encoded.encoded == encodes
        assert np.array_equal(vectors[0], vectors[1])
        assert np.array_equal(vectors[0], vectors[2]), "all of its pictures are left out"
        assert not np.array_equal(vectors[0], vectors[3])
        assert [row for row, _, _ in aside] == [2, 3]
        assert all(why.startswith("cannot be decoded: ") for _, _, why in aside)


def test_only_the_first_pictures_of_an_item_and_some_frames_of_a_video_are_read(root: Path) -> None:
    for at in range(3, 40):
        save(root / "video" / f"{at:02}.png", "red")
    pictures = Pictures(ImageSettings(root=root, max_frames=8))
    assert len(pictures.frames("video")) == 8
    with pytest.raises(ImageError):
        pictures.frames("video/../..")


def test_a_model_without_pictures_and_a_root_that_is_not_there_are_named(
    clip: Path, model: Path, tmp_path: Path, root: Path
) -> None:
    with pytest.raises(EncoderError, match="takes texts alone: a model that takes pictures is expected"):
        night(tmp_path, model, [{"images": ["red.png"]}])
    with pytest.raises(SettingsError, match=r"index.encoder.images.root .*elsewhere: no such folder"):
        night(tmp_path, clip, [{}], root=tmp_path / "elsewhere")
    settings = CatalogueSettings(columns=CatalogueColumns(images="photos"))
    source = write(tmp_path / "items.jsonl", [{"item_id": "1", "title": "tea", "photos": ["red.png"]}])
    with (
        scratch(tmp_path / "out") as work,
        pytest.raises(SettingsError, match=r"index.encoder.images.root is expected, too"),
    ):
        load_catalogue(work, source, settings, Quarantine(tmp_path / "q.jsonl"), lambda rows: None)


def test_without_a_root_the_column_is_not_read(clip: Path, tmp_path: Path) -> None:
    source = write(tmp_path / "items.jsonl", [{"item_id": "1", "title": "tea", "images": ["https://example.com/1"]}])
    with scratch(tmp_path / "out") as work:
        quarantine = Quarantine(tmp_path / "q.jsonl")
        found = load_catalogue(work, source, CatalogueSettings(), quarantine, lambda rows: None)
    assert (found.items, quarantine.counts) == (1, {})


def test_a_build_counts_what_of_the_pictures_could_not_be_used(clip: Path, tmp_path: Path, root: Path) -> None:
    rows = [{"item_id": f"i{at}", "title": "tea", "images": [name]} for at, name in enumerate(("red.png", "gone.png"))]
    settings = IndexSettings(
        encoder=EncoderSettings(model=str(clip), images=ImageSettings(root=root)),
        vector_store=tmp_path / "vectors",
        threads=1,
        memory_limit_mb=256,
    )
    summary = build(
        settings, write(tmp_path / "items.jsonl", rows), write(tmp_path / "events.jsonl", []), tmp_path / "snapshots",
        now=NOW, reporter=Silent(),
    )  # fmt: skip
    assert (summary.items, summary.distinct_texts, summary.catalogue_bad) == (2, 2, 0)
    assert summary.quarantined == {"images images is no file or folder": 1}
    assert current_id(tmp_path / "snapshots") == summary.snapshot
