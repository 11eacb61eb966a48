"""A synthetic shop whose shoppers can be understood: groups of items, and users who have favourites in two groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.features import PURCHASE
from indexer.learn.interactions import Interactions, interactions

START = np.datetime64("2026-01-01T00:00:00", "ns")
FIRST_DAY = float(START.astype(np.int64) / 86_400e9)
DAYS = 100.0


@dataclass(frozen=True, slots=True)
class Shop:
    """The log, content vectors float16 [n, 16] (the group of an item, with noise) and the group of each item."""

    log: Interactions
    content: npt.NDArray[np.float16]
    group: npt.NDArray[np.int64]


def make_shop(*, items: int = 240, groups: int = 12, users: int = 80, sessions: int = 1500, seed: int = 3) -> Shop:
    """Each session takes 5 items: most of one group of the user's two, some of them the user's favourites.

    The last tenth of the items is never sold. All items of a session share a timestamp and are listed by row.
    """
    random = np.random.default_rng(seed)
    group = np.arange(items) % groups
    sold = items - items // 10
    liked = np.stack([random.permutation(groups)[:2] for _ in range(users)])
    favourites = [_pick(random, group, sold, pair, 4) for pair in liked]
    columns: list[tuple[int, int, int, float]] = []
    for basket in range(sessions):
        user = int(random.integers(users))
        chosen = int(random.choice(liked[user]))
        usual = [row for row in favourites[user] if group[row] == chosen]
        rows = np.unique(np.concatenate([usual[:2], _pick(random, group, sold, [chosen], 4)]))[:5]
        moment = basket / sessions * DAYS
        columns += [(int(row), user, basket, moment) for row in rows]
    row_of, user_of, number, day = (np.array(column) for column in zip(*columns, strict=True))
    moments = START + (day * 86_400e9).astype("timedelta64[ns]")
    log = interactions(
        row_of.astype(np.int32),
        np.full(len(row_of), PURCHASE, np.uint8),
        user_of,
        number,
        moments,
        n_items=items,
        seed=seed,
    )
    centres = random.standard_normal((groups, 16))
    content = (centres[group] + 0.3 * random.standard_normal((items, 16))).astype(np.float16)
    return Shop(log, content, group)


def _pick(
    random: np.random.Generator, group: npt.NDArray[np.int64], sold: int, of: npt.ArrayLike, count: int
) -> npt.NDArray[np.int64]:
    possible = np.flatnonzero(np.isin(group[:sold], of))
    return random.choice(possible, count, replace=False)
