"""The whole job, killed: what was current is served, or what was built, and the next build goes on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.indexer.shop import plain_events, plain_items, write
from tests.indexer.test_job import Shop

KILLS = int(os.environ.get("FEEDLINE_KILLS", "0")) // 20
"""At a random moment. `make long` asks for 1,000 kills: these 50 of the whole job, and those of `tests/faults`."""


@pytest.fixture
def shop(tmp_path: Path, model: Path) -> Shop:
    return Shop(tmp_path, model)


_CHILD = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from indexer.job import build
from indexer.progress import PlainLines
from indexer.settings import IndexSettings
settings = IndexSettings.model_validate_json(sys.argv[1])
folder = Path(sys.argv[2])
build(settings, folder / "catalogue.parquet", folder / "events.jsonl", folder / "snapshots",
      now=datetime.now(UTC), reporter=PlainLines(sys.stdout))
"""


@pytest.mark.parametrize("stage", ["encode", "teachers", "publish"])
def test_a_build_that_is_killed_leaves_the_old_snapshot_or_the_new_one_whole(shop: Shop, stage: str) -> None:
    old = shop.build(plain_items(150), []).snapshot
    items = _another_night(shop)
    with _building(shop, subprocess.PIPE) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith(f"{stage}: done"):
                child.kill()
                break
    current = shop.current()
    assert (current.id == old) == (stage != "publish")
    summary = shop.build(items, [])
    assert summary.encoded == 0, "what the killed build encoded is kept"
    assert not list(shop.out.glob(".building-*"))
    assert not list(shop.out.glob(".staging-*"))


@pytest.mark.slow
@pytest.mark.skipif(not KILLS, reason="`make long` kills the whole job at random moments")
@pytest.mark.timeout(600 + 300 * KILLS)
def test_a_build_that_is_killed_at_a_random_moment(shop: Shop) -> None:
    rng = random.Random(50)
    shop.build(plain_items(150), [])
    _another_night(shop)
    begun = time.monotonic()
    with _building(shop) as child:
        assert child.wait() == 0
    lasts_s = time.monotonic() - begun
    new = 0
    for _ in range(KILLS):
        before = shop.current().id
        with _building(shop) as child:
            time.sleep(rng.uniform(0.1, 1.0) * lasts_s)
            child.kill()
        new += shop.current().id != before
    print(f"{KILLS} kills of a whole build of {lasts_s:.1f} s: {new} times it had published")
    summary = shop.build(plain_items(150), [])
    assert shop.current().id == summary.snapshot
    assert not list(shop.out.glob(".building-*"))
    assert not list(shop.out.glob(".staging-*"))


def _another_night(shop: Shop) -> list[dict[str, Any]]:
    """Other texts, and events to learn from."""
    items = [{**item, "title": f"new {item['title']}"} for item in plain_items(150)]
    write(shop.folder / "catalogue.parquet", items)
    write(shop.folder / "events.jsonl", plain_events(150, 300))
    return items


def _building(shop: Shop, said: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _CHILD, shop.settings.model_dump_json(), str(shop.folder)]
    return subprocess.Popen(command, stdout=said, text=True)
