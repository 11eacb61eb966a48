"""Questions that a snapshot can be asked: sessions among its own items, drawn with a seed."""

from __future__ import annotations

import numpy as np

from indexer.contract.features import Context, make_context
from indexer.contract.items import Rows
from services.feed.loaded import Loaded
from services.feed.question import Question

_CLICK = 3
_LONGEST = 10
_TRIES = 64


def questions(loaded: Loaded, count: int, seed: int = 1) -> list[Question]:
    """`count` questions after sessions of 1 to 10 clicks: an available item, the more popular the likelier, then
    neighbours of what was clicked before or, where there are none, other items. No filters. The snapshot has a shelf.
    """
    rng = np.random.default_rng(seed)
    asked = (Question(loaded, "bench", "", "", "bench", _session(loaded, rng)) for _ in range(count))
    return list(asked)


def _session(loaded: Loaded, rng: np.random.Generator) -> Context:
    assert loaded.shelf is not None
    rows: list[int] = [_popular(loaded, rng)]
    for _ in range(int(rng.integers(_LONGEST))):
        near: Rows = loaded.shelf.neighbours[rows[-1]]
        near = near[near >= 0]
        rows.append(int(rng.choice(near)) if len(near) else _popular(loaded, rng))
    return make_context(rows[::-1], [_CLICK] * len(rows), loaded.manifest.query.max_events)


def _popular(loaded: Loaded, rng: np.random.Generator) -> int:
    """The most popular available one of a few items: no pass over the catalogue."""
    some = rng.integers(loaded.items.count, size=_TRIES)
    some = some[: int(rng.integers(1, _TRIES + 1))]
    known = some[loaded.items.available[some]]
    among = known if len(known) else some
    return int(among[np.argmax(loaded.items.popularity[among])])
