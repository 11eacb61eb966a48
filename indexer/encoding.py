"""The encode step: vectors of contents that no build has encoded before, then of all items in row order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from indexer.content import BrokenImage, Chunk, Encoding
from indexer.encoder import encoder_fingerprint, locate
from indexer.engines import engine_of
from indexer.errors import EncoderError
from indexer.progress import Clock, Stages
from indexer.settings import EncoderSettings
from indexer.static_model import distilled
from indexer.text import Keys
from indexer.vector_store import Places, VectorStore
from indexer.workspace import Workspace

_STATIC = "static"
_MISSING = """
select text_no, text, images from texts join missing using (text_no) order by strlen(text) desc, text_no
"""


@dataclass(frozen=True, slots=True)
class Encoded:
    """The encoder's fingerprint, d, how many contents were encoded, and int64 [t]: a row of each distinct content.

    `broken`: pictures that could not be decoded, whose items have the vectors of their texts.
    """

    fingerprint: str
    dimension: int
    encoded: int
    first_rows: npt.NDArray[np.int64]
    broken: tuple[BrokenImage, ...] = ()


def encode_items(
    work: Workspace,
    stages: Stages,
    settings: EncoderSettings,
    folder: Path,
    target: Path,
    *,
    items: int,
    texts: int,
    threads: int,
    clock: Clock = time.monotonic,
) -> Encoded:
    """Writes float16 [items, d] to `target`, a row an item; needs the catalogue's tables. Raises EncoderError.

    What is encoded is stored shard by shard: a build that is killed loses one shard, bounded in texts and in seconds.
    """
    with stages.stage("stored"):
        fingerprint = encoder_fingerprint(settings, locate(settings.model))
        store = VectorStore(folder, fingerprint, threads)
        for shard, fault in store.damaged.items():
            stages.note(f"vector store: {shard} {fault}; it is removed, and its texts are encoded again")
        keys = _keys(work, "content", texts)
        places = store.find(keys)
        missing = np.flatnonzero(places < 0)
        alone = _keys(work, "content_key(text, null)", texts) if settings.images.root else keys
    broken: list[BrokenImage] = []
    if len(missing):
        if settings.kind == "static":
            with stages.stage("distil"):
                distilled(folder / _STATIC, locate(settings.model), fingerprint, settings.dimensions)
        shards = _Shards(store, keys, alone, places, settings, clock)
        engine = engine_of(settings, threads, folder / _STATIC)
        with (
            stages.stage("encode", len(missing), "texts") as advance,
            closing(engine.encode(_missing(work, missing, settings.chunk))) as encodings,
        ):
            for encoding in encodings:
                shards.take(encoding)
                broken += encoding.broken
                advance(len(encoding.numbers))
            shards.write()
        if (lacking := np.count_nonzero(places < 0)) > 0:
            raise EncoderError(f"index.encoder.engine {settings.engine} gave no vector for {lacking:,} texts")
    with stages.stage("gather", items, "vectors") as advance:
        text_of_row = _numbers(work, "select text_no from items order by row", items)
        store.gather(places[text_of_row], target, advance)
    first_rows = np.flatnonzero(np.diff(np.maximum.accumulate(text_of_row), prepend=-1))  # numbered by their first row
    return Encoded(fingerprint, store.dimension, len(missing), first_rows, tuple(broken))


class _Shards:
    """What is encoded but not stored yet: at most a shard of it, and none for longer than `shard_seconds`.

    `places` int64 [t] is told where the vectors of contents are once they are stored.
    """

    def __init__(
        self,
        store: VectorStore,
        keys: Keys,
        alone: Keys,
        places: Places,
        settings: EncoderSettings,
        clock: Clock,
    ) -> None:
        self._store = store
        self._keys = keys
        self._alone = alone
        self._places = places
        self._settings = settings
        self._clock = clock
        self._waiting: list[Encoding] = []
        self._since = clock()

    def take(self, encoding: Encoding) -> None:
        """Keeps it, and stores all that is kept when it is time."""
        self._waiting.append(encoding)
        full = sum(len(each.numbers) for each in self._waiting) + self._settings.chunk > self._settings.shard_size
        if full or self._clock() - self._since >= self._settings.shard_seconds:
            self.write()

    def write(self) -> None:
        """Stores what is kept; a content with a broken picture under the key of its text alone, to be tried again."""
        if self._waiting:
            numbers = np.concatenate([each.numbers for each in self._waiting])
            broken = np.isin(numbers, [each.text_no for encoding in self._waiting for each in encoding.broken])
            keys = np.where(broken, self._alone[numbers], self._keys[numbers])
            vectors = np.concatenate([each.vectors for each in self._waiting])
            if broken.any():  # the vectors of their texts may be there already
                known = np.where(broken, self._store.find(keys), -1)
                self._places[numbers[known >= 0]] = known[known >= 0]
                keys, vectors, numbers = keys[known < 0], vectors[known < 0], numbers[known < 0]
            if len(keys):
                self._places[numbers] = self._store.add(keys, vectors)
        self._waiting = []
        self._since = self._clock()


def _missing(work: Workspace, missing: npt.NDArray[np.int64], size: int) -> Iterator[Chunk]:
    """The missing contents, `size` a chunk, longest text first: chunks of like length, no bad surprise at the end."""
    work.sql.register("missing_view", pa.table([missing], names=["text_no"]))
    work.sql.execute("create or replace table missing as select cast(text_no as integer) as text_no from missing_view")
    work.sql.unregister("missing_view")
    rest: list[pa.RecordBatch] = []
    for batch in work.batches(_MISSING):
        rest.append(batch)
        table = pa.Table.from_batches(rest)
        whole = len(table) // size * size
        for first in range(0, whole, size):
            yield _chunk(table.slice(first, size))
        rest = table.slice(whole).to_batches()
    if rest:
        yield _chunk(pa.Table.from_batches(rest))


def _chunk(table: pa.Table) -> Chunk:
    images = table["images"]
    return Chunk(
        table["text_no"].to_numpy().astype(np.int64),
        table["text"].to_pylist(),
        None if images.null_count == len(images) else [each or () for each in images.to_pylist()],
    )


def _keys(work: Workspace, expression: str, texts: int) -> Keys:
    """S16 [texts], by text_no."""
    query = f"select {expression} as content from texts order by text_no"  # noqa: S608 - of our own words
    keys = np.empty(texts, "S16")
    first = 0
    for batch in work.batches(query):
        fixed = batch["content"].cast(pa.binary(16))
        raw = fixed.buffers()[1].slice(fixed.offset * 16, len(fixed) * 16)
        keys[first : first + len(fixed)] = np.frombuffer(raw, "S16")
        first += len(fixed)
    return keys


def _numbers(work: Workspace, query: str, count: int) -> npt.NDArray[np.int32]:
    """The one column of a query, int32 [count]."""
    numbers = np.empty(count, np.int32)
    first = 0
    for batch in work.batches(query):
        numbers[first : first + batch.num_rows] = batch.column(0).to_numpy()
        first += batch.num_rows
    return numbers
