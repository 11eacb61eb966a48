"""kill -9 at any moment of a night: the old snapshot is served or the new one, and the next night goes on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from indexer.contract.snapshot import current_id, open_snapshot, snapshot_ids
from indexer.vector_store import VectorStore
from services.feed.loading import Loader
from tests.faults.nightly import CONTENT, ENCODER, PHASES, id_of, keys_of, vectors_of
from tests.snapshots import Shop, publish_shop

KILLS = int(os.environ.get("FEEDLINE_KILLS", "16"))
"""A sample; `make long` asks for 1,000."""
NIGHTS = 50
"""In one folder."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
LOADER = Loader(exact_below=0, threads=1)


@dataclass(frozen=True)
class Moment:
    """`delay_s` after a night has entered a phase for the `nth` time, from 0."""

    phase: str
    nth: int = 0
    delay_s: float = 0.0


class Nights:
    """Nights in a child of a child."""

    def __init__(self, template: Path) -> None:
        self._template = template
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nightly"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )

    def run(self, root: Path, night: int, until: Moment) -> list[tuple[str, float]]:
        """A night that is killed at that moment, if it lasts so long; each phase that it entered, and when."""
        entered: list[tuple[str, float]] = []
        self._say(f"{root} {root.parent / 'vectors'} {self._template} {night}")
        for word in self._words():
            entered.append((word, time.perf_counter()))
            assert not word.startswith("failed"), word
            if word == "done" or [phase for phase, _ in entered].count(until.phase) > until.nth:
                break
        time.sleep(until.delay_s)
        self._say("end")
        for word in self._words():
            if word.startswith("status"):
                break
            entered.append((word, time.perf_counter()))
        return entered

    def close(self) -> None:
        self._process.communicate()

    def _words(self) -> Iterator[str]:
        assert self._process.stdout is not None
        return (line.rstrip("\n") for line in iter(self._process.stdout.readline, ""))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()


@pytest.fixture
def nights(tmp_path: Path) -> Iterator[Nights]:
    made = Nights(tmp_path / "template" / publish_shop(tmp_path / "template", Shop(count=200)))
    yield made
    made.close()


@pytest.mark.timeout(60 + KILLS)
def test_a_night_killed_at_any_moment_leaves_the_old_snapshot_or_the_new_one(tmp_path: Path, nights: Nights) -> None:
    """Ordering by time: killed at any system call the old one or the new one is served, never a mixture."""
    rng = random.Random(9)
    fell: Counter[str] = Counter()
    served: Counter[str] = Counter()
    for first in range(0, KILLS, NIGHTS):
        root = tmp_path / f"{first}" / "snapshots"
        spans = _spans(nights, root, first * 2)
        for night in range(first * 2 + 1, first * 2 + 1 + min(NIGHTS, KILLS - first)):
            old = current_id(root)
            phase = rng.choice(PHASES)
            nth = rng.randrange(3) if phase == "shard" else 0
            entered = nights.run(root, night, Moment(phase, nth, rng.uniform(0, spans[phase])))
            fell[entered[-1][0]] += 1
            current = current_id(root)
            assert current in {old, id_of(night)}
            served["old" if current == old else "new"] += 1
            _require_sound(root)
        last = first * 2 + 1 + NIGHTS
        assert nights.run(root, last, Moment("done"))[-1][0] == "done"
        assert current_id(root) == id_of(last)
        assert len(snapshot_ids(root)) <= 3
        assert not [path.name for path in root.iterdir() if path.name.startswith((".building-", ".CURRENT"))]
    print(f"{KILLS} kills: fell into {dict(fell)}; then served {dict(served)}")
    assert len(served) == 2 or KILLS < 10


def _spans(nights: Nights, root: Path, night: int) -> dict[str, float]:
    """Seconds that each phase takes, of a night that is left alone."""
    entered = nights.run(root, night, Moment("done"))
    spans = dict.fromkeys(PHASES, 0.0)
    for (phase, begun), (_, ended) in pairwise(entered):
        spans[phase] = max(spans[phase], ended - begun)
    return spans


def _require_sound(root: Path) -> None:
    """CURRENT is whole and can be served, no shard is damaged, and every vector belongs to its key."""
    current = current_id(root)
    assert current is not None
    LOADER.load(open_snapshot(root / current).require_whole(), whole=True)
    store = VectorStore(root.parent / "vectors", ENCODER)
    assert not store.damaged
    night = int(current[-8:], 16)
    assert (store.find(keys_of(night)) >= 0).all()
    assert np.array_equal(np.load(root / current / CONTENT), vectors_of(keys_of(night)))
