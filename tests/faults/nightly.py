"""A night in a few milliseconds, to be killed: the job's own lock, vector store, writer and publication, with models
and index that were made before. `python -m tests.faults.nightly` runs nights in children of its own, one at a time.

The children are forked, so that a thousand of them do not import for an hour: from a process of one thread that has
neither FAISS nor ONNX Runtime loaded, which it makes sure of.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from indexer.contract.publish import SnapshotWriter, exclusive, new_id, publish
from indexer.contract.snapshot import current_id, read_manifest
from indexer.text import Keys
from indexer.vector_store import Vectors, VectorStore

PHASES = ("lock", "store", "shard", "write", "gather", "checksums", "finish", "publish")
ENCODER = "words"
CONTENT = "content.npy"
_SHARDS = 3
_SHARD_ROWS = 64
_DIMENSION = 16
_CHUNK = 8192
_START = datetime(2026, 1, 2, tzinfo=UTC)


def keys_of(night: int) -> Keys:
    """S16 [m]: the texts that are new on that night."""
    return np.array([f"{night:06d}-{row:06d}".encode() for row in range(_SHARDS * _SHARD_ROWS)], "S16")


def vectors_of(keys: Keys) -> Vectors:
    """float16 [m, d]: what an encoder would have made of the texts; the same whenever it is asked."""
    seeds = np.array([int(key.replace(b"-", b"")) % 2**31 for key in keys.tolist()])
    return np.stack([seeds % prime for prime in range(101, 101 + _DIMENSION)], axis=1).astype(np.float16)


def id_of(night: int) -> str:
    """The id of the snapshot of that night."""
    return new_id(_START + timedelta(seconds=night), f"{night:08x}")


def run_night(root: Path, store: Path, template: Path, night: int, enter: Callable[[str], None]) -> None:
    """Builds and publishes the snapshot of the night; `enter` is told of each phase as it begins."""
    enter("lock")
    with exclusive(root, f"night {night}"):
        parent = current_id(root)
        enter("store")
        vectors = VectorStore(store, ENCODER)
        keys = keys_of(night)
        for shard in np.split(keys, _SHARDS):
            enter("shard")
            vectors.add(shard, vectors_of(shard))
        with SnapshotWriter(root, id_of(night)) as writer:
            made = read_manifest(template)
            enter("write")
            for name in made.files:
                with writer.path(name).open("wb") as file:
                    for chunk in _chunks(template / name):
                        file.write(chunk)
                        file.flush()
            enter("gather")
            vectors.gather(vectors.find(keys), writer.path(CONTENT), lambda rows: None)
            enter("checksums")
            manifest = made.model_copy(update={"id": id_of(night), "parent": parent, "files": writer.files()})
            enter("finish")
            writer.finish(manifest)
        enter("publish")
        publish(root, id_of(night))


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def main() -> None:
    """For each line "root store template night" on standard input: a child that tells of its phases on standard output;
    for the line "end": its end by SIGKILL, if it has not ended by itself, and its status."""
    assert "faiss" not in sys.modules
    assert "onnxruntime" not in sys.modules
    child = 0
    for line in sys.stdin:
        if line == "end\n":
            os.kill(child, signal.SIGKILL)  # not reaped yet: the number is still the child's
            _, status = os.waitpid(child, 0)
            os.write(1, f"status {os.waitstatus_to_exitcode(status)}\n".encode())
            continue
        assert len(list(Path("/proc/self/task").iterdir())) == 1
        root, store, template, night = line.split()
        child = os.fork()
        if child == 0:
            _one(Path(root), Path(store), Path(template), int(night))


def _one(root: Path, store: Path, template: Path, night: int) -> None:
    try:
        run_night(root, store, template, night, _say)
        _say("done")
    except BaseException as error:
        _say(f"failed {error!r}")
        raise
    finally:
        os._exit(0)


def _say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


if __name__ == "__main__":
    main()
