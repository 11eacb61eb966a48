"""Encoding in this process."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import closing
from pathlib import Path

from indexer.content import Chunk, Encoding
from indexer.encoder import Encoder
from indexer.settings import EncoderSettings


class LocalEngine:
    """An encoder on the threads of this process."""

    def __init__(self, settings: EncoderSettings, threads: int, static: Path) -> None:
        self._settings = settings
        self._threads = threads
        self._static = static

    def encode(self, chunks: Iterable[Chunk]) -> Generator[Encoding, None, None]:
        """As Engine.encode, in the order of the chunks, which are taken as they are needed."""
        with closing(Encoder(self._settings, self._threads, self._static)) as encoder:
            yield from encoder.encode_chunks(chunks)
