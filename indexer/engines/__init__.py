"""Where contents are encoded: in this process, or by Ray. Both give the same vectors for the same chunks."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Protocol

from indexer.content import Chunk, Encoding
from indexer.settings import EncoderSettings


class Engine(Protocol):
    """Encodes; whatever it starts, it ends when the iterator ends or is closed."""

    def encode(self, chunks: Iterable[Chunk]) -> Generator[Encoding, None, None]:
        """An Encoding a chunk, in any order. Raises EncoderError."""


def engine_of(settings: EncoderSettings, threads: int, static: Path) -> Engine:
    """The engine by the settings; `static` is the folder of distilled models."""
    if settings.engine == "ray":
        from indexer.engines.ray import RayEngine  # noqa: PLC0415 - an extra

        return RayEngine(settings, threads, static)
    from indexer.engines.local import LocalEngine  # noqa: PLC0415

    return LocalEngine(settings, threads, static)
