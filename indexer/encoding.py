"""The encode step: vectors of texts that no build has encoded before, then of all items in row order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from indexer.encoder import Encoder
from indexer.progress import Stages
from indexer.settings import EncoderSettings
from indexer.text import content_keys
from indexer.vector_store import VectorStore
from indexer.workspace import Workspace

_BATCHES_A_TICK = 16


@dataclass(frozen=True, slots=True)
class Encoded:
    """The encoder's fingerprint, d, how many texts were encoded, and int64 [t]: a row of each distinct text."""

    fingerprint: str
    dimension: int
    encoded: int
    first_rows: npt.NDArray[np.int64]


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
) -> Encoded:
    """Writes float16 [items, d] to `target`, a row an item; needs the catalogue's tables. Raises EncoderError."""
    encoder = Encoder(settings, threads)
    store = VectorStore(folder, encoder.fingerprint)
    for shard, fault in store.damaged.items():
        stages.note(f"vector store: {shard} {fault}; it is removed, and its texts are encoded again")
    keys = content_keys(_column(work, "select text from texts order by text_no", "text"), texts)
    missing = np.flatnonzero(store.find(keys) < 0)
    with closing(encoder), stages.stage("encode", len(missing), "texts") as advance:
        for shard_texts in _missing_texts(work, missing, settings.shard_size):
            vectors = []
            tick = _BATCHES_A_TICK * settings.batch_size
            for first in range(0, len(shard_texts), tick):
                vectors.append(encoder.encode(shard_texts[first : first + tick]))
                advance(len(vectors[-1]))
            store.add(content_keys(shard_texts, len(shard_texts)), np.concatenate(vectors))
    with stages.stage("gather", items, "vectors") as advance:
        text_of_row = np.fromiter(_column(work, "select text_no from items order by row", "text_no"), np.int32, items)
        store.gather(store.find(keys)[text_of_row], target, advance)
    _, first_rows = np.unique(text_of_row, return_index=True)
    return Encoded(encoder.fingerprint, store.dimension, len(missing), first_rows.astype(np.int64))


def _missing_texts(work: Workspace, missing: npt.NDArray[np.int64], size: int) -> Iterator[list[str]]:
    """The missing texts in lists of `size`, longest first: batches of like length, and no good surprise at the end."""
    if len(missing) == 0:
        return
    work.sql.register("missing_view", pa.table([missing], names=["text_no"]))
    work.sql.execute("create or replace table missing as select cast(text_no as integer) as text_no from missing_view")
    work.sql.unregister("missing_view")
    waiting: list[str] = []
    query = "select text from texts join missing using (text_no) order by strlen(text) desc, text_no"
    for text in _column(work, query, "text"):
        waiting.append(text)
        if len(waiting) == size:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _column(work: Workspace, query: str, name: str) -> Iterator[Any]:
    for batch in work.batches(query):
        yield from batch[name].to_pylist()
