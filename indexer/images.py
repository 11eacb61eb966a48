"""Pictures of items: files below one root. What cannot be used is named, counted, and the item keeps its text.

A path leads to a picture or to a folder of pictures, which is a video. Addresses, absolute paths and whatever leaves
the root are refused. The service never reads any of this.
"""

from __future__ import annotations

import hashlib
import io
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import pyarrow as pa

from indexer.content import BrokenImage
from indexer.errors import SettingsError
from indexer.files import Aside
from indexer.quarantine import Quarantine
from indexer.settings import ImageSettings
from indexer.workspace import Workspace

if TYPE_CHECKING:
    from PIL.Image import Image

SOURCE = "images"
NO_IMAGES = ImageSettings()
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"})
_FOUND = pa.schema([("path", pa.string()), ("digest", pa.string()), ("reason", pa.string())])
_BAD = pa.schema(
    [
        ("file", pa.int32()),
        ("line", pa.int64()),
        ("field", pa.string()),
        ("reason", pa.string()),
        ("value", pa.string()),
    ]
)

_NONE = """
create or replace table item_pictures (file integer, line bigint, images varchar[], pictures blob);
create or replace table bad_pictures (file integer, line bigint, field varchar, reason varchar, value varchar);
"""
_JOIN = """
create or replace table used as
select file, line, path, place from (
    select file, line, unnest(images[:$1]) as path, generate_subscripts(images[:$1], 1) as place
    from checked where fault is null and images is not null);
"""
_TAKE = """
create or replace table item_pictures as
select file, line, list(path order by place) as images, unhex(sha256(string_agg(digest, '' order by place))) as pictures
from used join found_pictures using (path) where reason is null group by all;

create or replace table bad_pictures as
select file, line, 'images' as field, reason, path as value
from used join found_pictures using (path) where reason is not null;
"""


class ImageError(Exception):
    """A picture cannot be used; the message says why, without its path."""


@dataclass(frozen=True, slots=True)
class Pictures:
    """Reads pictures below `settings.root`."""

    settings: ImageSettings

    @property
    def root(self) -> Path:
        """The folder below which all pictures are."""
        if self.settings.root is None:
            raise SettingsError("index.encoder.images.root: the folder of the pictures is expected")
        return self.settings.root.resolve()

    def digest(self, given: str) -> str:
        """64 hex digits of the bytes of the picture, or of all frames of a video. Raises ImageError."""
        digests = []
        for path in self._files(given):
            data = self._bytes(path)
            self._open(data)
            digests.append(hashlib.sha256(data).hexdigest())
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def frames(self, given: str) -> list[Image]:
        """The picture, or the frames of a video, decoded to RGB and upright. Raises ImageError."""
        return [self._decoded(self._bytes(path)) for path in self._files(given)]

    def _files(self, given: str) -> Sequence[Path]:
        root = self.root
        if "://" in given or given.startswith("data:"):
            raise ImageError("is an address; a path below index.encoder.images.root is expected")
        if PurePosixPath(given).is_absolute():
            raise ImageError("is an absolute path; one below index.encoder.images.root is expected")
        try:
            path = _inside(root, root / given)
            if path.is_file():
                return [path]
            if not path.is_dir():
                raise ImageError("is no file or folder")
            frames = sorted(each for each in path.iterdir() if each.suffix.lower() in _SUFFIXES)
            if not frames:
                raise ImageError("is a folder without pictures")
            most = self.settings.max_frames
            chosen = frames if len(frames) <= most else [frames[at * len(frames) // most] for at in range(most)]
            return [_inside(root, each) for each in chosen]
        except (OSError, ValueError, RuntimeError) as error:  # the last: a loop of links, before Python 3.13
            raise ImageError(f"is no path: {_said(error)}") from error

    def _bytes(self, path: Path) -> bytes:
        limit = self.settings.max_bytes
        try:
            with path.open("rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise ImageError(f"cannot be read: {_said(error)}") from error
        if len(data) > limit:
            raise ImageError(f"is larger than index.encoder.images.max_bytes, {limit:,}")
        return data

    def _open(self, data: bytes) -> Image:
        """The picture's head is read, its pixels are not."""
        from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - only where there are pictures

        Image.MAX_IMAGE_PIXELS = None  # ours is checked instead, before anything is decoded
        try:
            image = Image.open(io.BytesIO(data), formats=_FORMATS)
        except UnidentifiedImageError as error:
            raise ImageError(f"is none of {', '.join(_FORMATS)}") from error
        except (OSError, ValueError, SyntaxError) as error:
            raise ImageError(f"cannot be decoded: {_said(error)}") from error
        if image.width * image.height > self.settings.max_pixels:
            raise ImageError(f"has more pixels than index.encoder.images.max_pixels, {self.settings.max_pixels:,}")
        return image

    def _decoded(self, data: bytes) -> Image:
        from PIL import ImageOps  # noqa: PLC0415

        image = self._open(data)
        try:
            return ImageOps.exif_transpose(image).convert("RGB")
        except (OSError, ValueError, SyntaxError, EOFError) as error:
            raise ImageError(f"cannot be decoded: {_said(error)}") from error


def find_pictures(work: Workspace, settings: ImageSettings, threads: int) -> None:
    """From the table `checked`: `item_pictures` (file, line, images, pictures) and `bad_pictures`, as `bad_rows`.

    Every file that an item names is read, to know whether it has changed. Raises SettingsError when Pillow, or the
    root, is not there.
    """
    work.sql.execute(_NONE)
    if settings.root is None:
        return
    require_pillow()
    pictures = Pictures(settings)
    if not pictures.root.is_dir():
        raise SettingsError(f"index.encoder.images.root {settings.root}: no such folder")
    work.sql.execute(_JOIN, [settings.max_images])
    work.sql.register("found_none", _FOUND.empty_table())
    work.sql.execute("create or replace table found_pictures as select * from found_none")
    work.sql.unregister("found_none")
    with ThreadPoolExecutor(threads) as readers:
        for batch in work.batches("select distinct path from used order by path"):
            paths = batch["path"].to_pylist()
            found = pa.Table.from_pylist(list(readers.map(partial(_looked_at, pictures), paths)), _FOUND)
            work.sql.register("found_more", found)
            work.sql.execute("insert into found_pictures select * from found_more")
            work.sql.unregister("found_more")
    work.sql.execute(_TAKE)


def set_aside_found(work: Workspace, quarantine: Quarantine, files: Sequence[Path]) -> None:
    """Puts the table `bad_pictures` into quarantine; the items stay."""
    work.sql.execute("create or replace table bad_rows as select * from bad_pictures")
    quarantine.add(SOURCE, work, Aside(), files, seen=work.count("select count(*) from bad_rows"), max_bad_share=1)


def set_aside_broken(
    work: Workspace, quarantine: Quarantine, files: Sequence[Path], broken: Sequence[BrokenImage]
) -> None:
    """Puts pictures that could not be decoded into quarantine, once for each item that names them."""
    by_content = defaultdict(list)
    for each in broken:
        by_content[each.text_no].append(each)
    rows = [
        {"file": file, "line": line, "field": SOURCE, "reason": each.reason, "value": each.path}
        for text_no, file, line in work.sql.execute("select text_no, file, line from picture_rows").fetchall()
        for each in by_content.get(text_no, ())
    ]
    work.sql.register("broken", pa.Table.from_pylist(rows, _BAD))
    work.sql.execute("create or replace table bad_pictures as select * from broken")
    work.sql.unregister("broken")
    set_aside_found(work, quarantine, files)


def require_pillow() -> None:
    """Raises SettingsError when Pillow is not installed."""
    try:
        import PIL  # noqa: F401, PLC0415
    except ImportError as error:
        raise SettingsError('index.encoder.images.root needs Pillow: pip install "feedline[images]"') from error


def _looked_at(pictures: Pictures, path: str) -> dict[str, str | None]:
    try:
        return {"path": path, "digest": pictures.digest(path), "reason": None}
    except ImageError as error:
        return {"path": path, "digest": None, "reason": str(error)}


def _inside(root: Path, path: Path) -> Path:
    real = path.resolve(strict=False)
    if not real.is_relative_to(root):
        raise ImageError("leads out of index.encoder.images.root")
    return real


def _said(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)
