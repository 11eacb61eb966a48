"""Engines: the same vectors wherever they are computed, and a worker that dies costs time only.

Ray runs in a child process: it warns of its own use of itself, and it leaves threads and settings of the whole process
behind.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from indexer.content import Chunk
from indexer.encoder import Encoder
from indexer.engines import engine_of
from indexer.engines.local import LocalEngine
from indexer.errors import SettingsError
from indexer.settings import EncoderSettings
from tests.indexer.tiny_models import WORDS

TEXTS = 80 * 1024

_CHILD = '''
import json, os, signal, sys
from pathlib import Path
import numpy as np
from indexer.engines import engine_of
from indexer.settings import EncoderSettings
from tests.indexer.test_engines import chunks

def under(root):
    """Process ids below this one."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, ProcessLookupError):
            continue
    found, waiting = [], [root]
    while waiting:
        parent = waiting.pop()
        below = [each for each, of in parents.items() if of == parent]
        found += below
        waiting += below
    return found

def named(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""

def open_to_others(pids):
    """Ports on which they listen for other machines."""
    inodes = set()
    for pid in pids:
        for file in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                inodes.add(os.readlink(file))
            except OSError:
                continue
    tables = [Path(f"/proc/net/{name}").read_text().splitlines()[1:] for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    listening = [line for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes]
    local = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
    return [line[1] for line in listening if not line[1].startswith(local)]

settings = EncoderSettings.model_validate_json(sys.argv[1])
found, killed, ports = [], 0, []
for encoding in engine_of(settings, 2, Path(sys.argv[2])).encode(chunks()):
    if not found:
        below = under(os.getpid())
        ports = open_to_others(below)
        workers = [pid for pid in below if named(pid).startswith("ray::MapWorker")]
        os.kill(workers[0], signal.SIGKILL)
        killed = workers[0]
    found.append(encoding)
found.sort(key=lambda each: each.numbers[0])
np.save(sys.argv[3], np.concatenate([each.vectors for each in found]))
print(json.dumps({"numbers": np.concatenate([each.numbers for each in found]).tolist(), "killed": killed,
                  "usage": os.environ["RAY_USAGE_STATS_ENABLED"], "ports": ports, "left": under(os.getpid())}))
'''


def chunks() -> Iterator[Chunk]:
    """Texts of 1 to 16 words."""
    for first in range(0, TEXTS, 1024):
        numbers = np.arange(first, first + 1024)
        yield Chunk(
            numbers, [" ".join(WORDS[(at * 7 + word) % len(WORDS)] for word in range(at % 16 + 1)) for at in numbers]
        )


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_ray_gives_the_same_bits_although_a_worker_is_killed(model: Path, tmp_path: Path) -> None:
    """By a static model, whose workers need no torch: each of them starts in a second."""
    settings = EncoderSettings.model_validate(
        {"kind": "static", "model": str(model), "engine": "ray", "ray": {"workers": 2, "object_store_mb": 80}}
    )
    distilled = tmp_path / Encoder(settings, 1).fingerprint
    distilled.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):  # the model of the test is static itself
        shutil.copyfile(next(model.rglob(name)), distilled / name)
    command = [sys.executable, "-c", _CHILD, settings.model_dump_json(), str(tmp_path), str(tmp_path / "found.npy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    expected = [each.vectors for each in LocalEngine(settings, 1, tmp_path).encode(chunks())]
    assert said["killed"] > 0
    assert said["numbers"] == list(range(TEXTS)), "each chunk once"
    assert np.array_equal(np.load(tmp_path / "found.npy"), np.concatenate(expected))
    assert (said["usage"], said["ports"]) == ("0", [])


def test_without_ray_the_extra_is_named(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    with pytest.raises(
        SettingsError, match=r'index.encoder.engine ray needs the package ray: pip install "feedline\[ray\]"'
    ):
        engine_of(EncoderSettings(model=str(model), engine="ray"), 1, tmp_path)


def test_an_engine_that_is_left_early_ends_its_threads(model: Path, tmp_path: Path) -> None:
    taken = []

    def counted() -> Iterator[Chunk]:
        for chunk in chunks():
            taken.append(chunk)
            yield chunk

    encodings = LocalEngine(EncoderSettings(model=str(model)), 1, tmp_path).encode(counted())
    next(encodings)
    encodings.close()
    assert len(taken) <= 4, "chunks are taken as they are needed"
