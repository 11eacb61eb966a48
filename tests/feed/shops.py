"""Loaded snapshots and questions about them, without a service around."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from indexer.contract.features import Context
from indexer.contract.history import History
from indexer.contract.snapshot import open_snapshot
from services.feed.loaded import Loaded
from services.feed.loading import Loader
from services.feed.question import Question
from services.feed.work import Person
from tests.snapshots import Shop, publish_shop


def open_shop(root: Path, shop: Shop, *, exact_below: int = 0) -> Loaded:
    """Publishes a snapshot of the shop and loads it."""
    return reload(root / publish_shop(root, shop), exact_below=exact_below)


def reload(folder: Path, *, exact_below: int = 0, whole: bool = False) -> Loaded:
    """Loads what can be trusted of the snapshot in `folder`; with `whole` all of it or nothing."""
    return Loader(exact_below=exact_below, threads=1).load(open_snapshot(folder), whole=whole)


def viewed_context(*rows: int) -> Context:
    """A context of views, newest first."""
    return Context(np.array(rows, np.int32), np.full(len(rows), 2, np.uint8))


def question(loaded: Loaded, *rows: int, category: str = "", region: str = "") -> Question:
    """A question of somebody who viewed these rows, the newest first."""
    return Question(loaded, "home", category, region, "default", viewed_context(*rows))


def person(*rows: int, day: float = 100.0) -> Person:
    """Somebody who bought these rows, the latest first: each once, the place in the list in days before `day`."""
    count = len(rows)
    days = day - np.arange(1.0, count + 1)
    return Person(History(np.array(rows, np.int32), np.ones(count, np.int32), days, days, count), day)
