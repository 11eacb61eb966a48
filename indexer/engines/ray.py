"""Encoding by Ray Data: actors that load the model once, on a cluster of this build's own or on one that is there.

A worker that dies is started again and its piece of work is done again, as often as it takes: Ray Data's default for
actors. Nothing leaves the machine for a cluster of
its own: no usage report, no dashboard, loopback alone.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from indexer.content import BrokenImage, Chunk, Encoding
from indexer.encoder import Encoder
from indexer.errors import BuildError, EncoderError, SettingsError
from indexer.settings import EncoderSettings, RaySettings

if TYPE_CHECKING:
    import types

_CHUNKS_A_BLOCK = 16
_LOOPBACK = "127.0.0.1"
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
}
_ALONE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what Ray calls its switch to the loopback interface, on any system
    "RAY_AUTH_MODE": "token",
}
_BROKEN = pa.struct([("text_no", pa.int64()), ("path", pa.string()), ("reason", pa.string())])
_WORK = pa.schema(
    [
        ("numbers", pa.list_(pa.int64())),
        ("texts", pa.list_(pa.string())),
        ("images", pa.list_(pa.list_(pa.string()))),
    ]
)
_DONE = pa.schema(
    [
        ("numbers", pa.list_(pa.int64())),
        ("vectors", pa.binary()),
        ("broken", pa.list_(_BROKEN)),
    ]
)
"""A row is a chunk, so that its texts stay together whatever Ray does with the rows."""


class RayEngine:
    """Raises SettingsError at once when Ray is not installed."""

    def __init__(self, settings: EncoderSettings, threads: int, static: Path) -> None:
        self._settings = settings
        self._workers = settings.ray.workers or threads
        self._static = static.absolute()
        self._ray = _imported(alone=not settings.ray.address)

    def encode(self, chunks: Iterable[Chunk]) -> Generator[Encoding, None, None]:
        """As Engine.encode, in the order in which workers are done. All chunks are handed to Ray's object store first,
        which puts them on disk beyond its size."""
        ray = self._ray
        with _cluster(ray, self._settings.ray, self._workers), _as_encoder_error(ray):
            dataset = ray.data.from_arrow_refs([ray.put(block) for block in _blocks(chunks)])
            done = dataset.map_batches(
                Worker,
                fn_constructor_args=(self._settings.model_dump_json(), str(self._static)),
                batch_size=_CHUNKS_A_BLOCK,
                batch_format="pyarrow",
                compute=ray.data.ActorPoolStrategy(size=self._workers),
                num_cpus=1,
                num_gpus=1 if self._settings.device == "cuda" else 0,
            )
            for table in done.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from map(_encoding, table.to_pylist())


class Worker:
    """One process of Ray's, one thread, one model."""

    def __init__(self, settings: str, static: str) -> None:
        self._encoder = Encoder(EncoderSettings.model_validate_json(settings), 1, Path(static))

    def __call__(self, table: pa.Table) -> pa.Table:
        """Rows of `_WORK` to rows of `_DONE`."""
        chunks = [Chunk(np.array(row["numbers"], np.int64), row["texts"], row["images"]) for row in table.to_pylist()]
        return pa.Table.from_pylist([_row(each) for each in self._encoder.encode_chunks(chunks)], _DONE)


def _blocks(chunks: Iterable[Chunk]) -> Iterator[pa.Table]:
    rows = ({"numbers": each.numbers, "texts": each.texts, "images": each.images} for each in chunks)
    while block := list(islice(rows, _CHUNKS_A_BLOCK)):
        yield pa.Table.from_pylist(block, _WORK)


def _row(encoding: Encoding) -> dict[str, Any]:
    broken = [{"text_no": each.text_no, "path": each.path, "reason": each.reason} for each in encoding.broken]
    return {"numbers": encoding.numbers, "vectors": encoding.vectors.astype("<f2").tobytes(), "broken": broken}


def _encoding(row: dict[str, Any]) -> Encoding:
    numbers = np.array(row["numbers"], np.int64)
    vectors = np.frombuffer(row["vectors"], "<f2").reshape(len(numbers), -1)
    return Encoding(numbers, vectors, tuple(BrokenImage(**each) for each in row["broken"]))


def _imported(*, alone: bool) -> types.ModuleType:
    """Ray, told what it reads from the environment when it is imported, as do the processes that it starts."""
    missing = 'index.encoder.engine ray needs the package ray: pip install "feedline[ray]"'
    if importlib.util.find_spec("ray") is None:
        raise SettingsError(missing)
    os.environ.update(_QUIET)
    if alone:
        os.environ.update({**_ALONE, "RAY_AUTH_TOKEN": secrets.token_hex(32)})
    try:
        import ray.data  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise SettingsError(f"{missing} ({error})") from error
    return ray


@contextmanager
def _cluster(ray: types.ModuleType, settings: RaySettings, workers: int) -> Iterator[None]:
    """Connected to the cluster while entered; one of its own is ended with all that it wrote."""
    folder = Path(tempfile.mkdtemp(prefix="feedline-ray-"))  # short: the paths of its sockets must be
    own: dict[str, Any] = {
        "num_cpus": workers,
        "include_dashboard": False,
        "object_store_memory": settings.object_store_mb << 20,
        "_node_ip_address": _LOOPBACK,
        "_temp_dir": str(folder),
    }
    where = {"address": settings.address} if settings.address else {"address": "local", **own}
    try:
        try:
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            at = settings.address or "a cluster of this build's own"
            raise BuildError(f"index.encoder.ray.address: Ray cannot be used at {at}: {error}") from error
        ray.data.DataContext.get_current().enable_progress_bars = False  # progress is shown by the job
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _as_encoder_error(ray: types.ModuleType) -> Iterator[None]:
    """What went wrong in a worker is said as it would be said here."""
    try:
        yield
    except ray.exceptions.RayError as error:
        cause: BaseException = error
        while (deeper := getattr(cause, "cause", None) or cause.__cause__) is not None and deeper is not cause:
            cause = deeper
        if isinstance(cause, BuildError):
            raise EncoderError(str(cause)) from error
        raise EncoderError(f"Ray: {cause}") from error
