"""Turns the recorded events into a Parquet file for the next night."""

from __future__ import annotations

import asyncio
import datetime
import fcntl
import json
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, cast

import pyarrow as pa
import pyarrow.parquet as pq
from redis.asyncio import Redis
from redis.exceptions import RedisError

from indexer.contract import exported
from services.domain import EventType
from services.errors import StateUnavailable
from services.feed.event_stream import STREAM_FIELD, STREAM_FORMAT
from services.feed.state_keys import StateKeys

SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),
        ("tenant", pa.string()),
        ("session_id", pa.string()),
        ("user_id", pa.string()),
        ("region", pa.string()),
        ("item_id", pa.string()),
        ("type", pa.string()),
        ("occurred_at", pa.timestamp("ms", tz="UTC")),
        ("response_id", pa.string()),
        ("recorded_at", pa.timestamp("ms", tz="UTC")),
    ],
    metadata={exported.MARK: exported.FORMAT},
)
_TYPE_NAMES = {int(event_type): event_type.name.lower() for event_type in EventType}
_Entry = tuple[bytes, dict[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Exported:
    """What a run did. `file` is None when there was nothing to export; `rejects` when nothing was unreadable."""

    events: int
    rejected: int
    file: Path | None
    rejects: Path | None


async def export(
    client: Redis,
    out: Path,
    keys: StateKeys,
    *,
    now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    progress: Callable[[int], None] | None = None,
    batch_size: int = 2000,
    timeout_s: float = 10.0,
) -> Exported:
    """Move all events that are in the streams now into one new file `out/events-<time>.parquet`.

    The file is complete and on disk before anything is taken from the streams. Killed at any moment nothing is lost:
    at worst the next run exports the same events again, and the night counts an event_id once. Entries that cannot be
    read go to `_events-<time>.rejected.jsonl`, which the night does not read. `progress` gets the number of events
    written so far. Each command to the server may take `timeout_s`.

    Raises `StateUnavailable` if the server fails and `OSError` if the file cannot be written; the streams are as they
    were then, or trimmed of what is in the file. Raises `BlockingIOError` naming the lock if another export runs.
    """
    with _alone_in(out):
        run = _Run(client, out, f"events-{now():%Y%m%dT%H%M%S%fZ}", progress, batch_size, timeout_s)
        try:
            last_ids = {stream: await run.drain(stream) for stream in keys.streams()}
            done = run.publish()
        finally:
            run.close()
        for stream, last_id in last_ids.items():
            if last_id is not None:
                await run.call(client.xtrim(stream, minid=_after(last_id), approximate=False))
        return done


class _Run:
    """One run: reads streams batch by batch into files that do not bear their names yet."""

    def __init__(
        self,
        client: Redis,
        out: Path,
        stem: str,
        progress: Callable[[int], None] | None,
        batch_size: int,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._file = out / f"{stem}.parquet"
        self._rejects = out / f"_{stem}.rejected.jsonl"
        self._progress = progress
        self._batch_size = batch_size
        self._timeout_s = timeout_s
        self._writer: pq.ParquetWriter | None = None
        self._reject_writer: TextIO | None = None
        self._events = 0
        self._rejected = 0

    async def call(self, command: object) -> object:
        """Await a command of the client under the run's time-out."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await cast("Awaitable[object]", command)
        except (RedisError, OSError) as error:
            raise StateUnavailable(f"events export: {type(error).__name__}: {error}") from error

    async def drain(self, stream: str) -> str | None:
        """Write all entries that the stream holds now. Returns the id of the last one, None if it is empty."""
        newest = cast("list[_Entry]", await self.call(self._client.xrevrange(stream, count=1)))
        if not newest:
            return None
        end = newest[0][0].decode()
        start = "-"
        while True:
            batch = await self.call(self._client.xrange(stream, start, end, count=self._batch_size))
            entries = cast("list[_Entry]", batch)
            if not entries:
                return end
            self._write(stream, entries)
            start = _after(entries[-1][0].decode())

    def publish(self) -> Exported:
        """Flush the files to disk and give them their names."""
        self.close()
        if self._reject_writer is not None:
            _publish(_temporary(self._rejects), self._rejects)
        if self._writer is not None:
            _publish(_temporary(self._file), self._file)
        return Exported(
            self._events,
            self._rejected,
            None if self._writer is None else self._file,
            None if self._reject_writer is None else self._rejects,
        )

    def close(self) -> None:
        """Close the files; without `publish` the next run removes them."""
        if self._writer is not None:
            self._writer.close()
        if self._reject_writer is not None:
            self._reject_writer.close()

    def _write(self, stream: str, entries: list[_Entry]) -> None:
        rows = []
        for entry in entries:
            try:
                rows.append(_row(entry))
            except (ValueError, TypeError, KeyError) as error:
                self._reject(stream, entry, error)
        if not rows:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(_temporary(self._file), SCHEMA, compression="zstd")
        columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
        self._writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
        self._events += len(rows)
        if self._progress is not None:
            self._progress(self._events)

    def _reject(self, stream: str, entry: _Entry, error: Exception) -> None:
        if self._reject_writer is None:
            self._reject_writer = _temporary(self._rejects).open("w", encoding="utf-8")
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in entry[1].items()}
        reject = {"stream": stream, "id": entry[0].decode(), "reason": repr(error), "fields_latin1": fields}
        self._reject_writer.write(json.dumps(reject) + "\n")
        self._rejected += 1


def _row(entry: _Entry) -> tuple[object, ...]:
    """Return the columns of an entry, in the order of the schema. Raises for an entry of another making."""
    number, *fields = json.loads(entry[1][STREAM_FIELD])
    if number != STREAM_FORMAT:
        raise ValueError(f"expected format {STREAM_FORMAT}, got {number!r}")
    *texts, item_id, event_type, occurred_at_ms, response_id = fields
    event_id, tenant, session_id, user_id, region = texts
    what = (event_id, tenant, session_id, user_id, region, item_id, _TYPE_NAMES[event_type])
    "".join((*what, response_id)).encode()  # Raises unless all are texts that Parquet can hold.
    if not isinstance(occurred_at_ms, int) or abs(occurred_at_ms) >= 2**53:
        raise TypeError(f"occurred_at: expected milliseconds, got {occurred_at_ms!r}")
    recorded_at_ms = int(entry[0].split(b"-")[0])
    return (*what, occurred_at_ms, response_id, recorded_at_ms)


def _after(entry_id: str) -> str:
    milliseconds, sequence = entry_id.split("-")
    return f"{milliseconds}-{int(sequence) + 1}"


def _temporary(file: Path) -> Path:
    return file.with_name(f".{file.name}.tmp")


def _publish(temporary: Path, file: Path) -> None:
    for path, rename in ((temporary, True), (file.parent, False)):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if rename:
            temporary.rename(file)


@contextmanager
def _alone_in(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    lock = out / ".export.lock"
    with lock.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another events export holds the lock", str(lock)) from None
        for leftover in (*out.glob(".events-*.tmp"), *out.glob("._events-*.tmp")):
            leftover.unlink()
        yield
