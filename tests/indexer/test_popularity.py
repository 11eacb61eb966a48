"""Popularity: decayed by half-lives, by region and category, and nobody is shown what may not be shown."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.contract import popular
from indexer.popularity import scaled, score_items, write_lists
from indexer.settings import PopularitySettings
from indexer.workspace import Workspace
from tests.indexer.shop import NOW, load_items, load_shopping, scratch, write

Lists = dict[tuple[str | None, str | None], list[tuple[int, float]]]
ITEMS: list[dict[str, Any]] = [
    {"item_id": "tea0", "title": "0", "category": "tea"},
    {"item_id": "tea1", "title": "1", "category": "tea"},
    {"item_id": "hidden2", "title": "2", "category": "tea", "available": False},
    {"item_id": "cup3", "title": "3", "category": "cups", "regions": ["north"]},
    {"item_id": "cup4", "title": "4", "category": "cups"},
    {"item_id": "none5", "title": "5"},
    {"item_id": "jar6", "title": "6", "category": "jars"},
]


def event(item: str, kind: str = "purchase", days: float = 0, region: str | None = None) -> dict[str, Any]:
    at = (NOW - timedelta(days=days)).isoformat()
    return {"session_id": "s", "item_id": item, "type": kind, "occurred_at": at, "region": region}


def filled(work: Workspace, tmp_path: Path, events: list[dict[str, Any]]) -> None:
    load_items(work, write(tmp_path / "items.jsonl", ITEMS))
    source = write(tmp_path / "events.jsonl", events) if events else tmp_path / "none.csv"
    source.touch()
    load_shopping(work, source)


def lists_of(work: Workspace, tmp_path: Path, settings: PopularitySettings) -> Lists:
    score_items(work, settings, len(ITEMS), before=None, reference=NOW)
    count = write_lists(work, settings, tmp_path / "popular.parquet")
    lists: Lists = defaultdict(list)
    previous = None
    for entry in popular.read(tmp_path / "popular.parquet").to_pylist():
        key = (entry["region"], entry["category"])
        assert key == previous or key not in lists, "entries of one list stand together"
        previous = key
        lists[key].append((entry["row"], entry["score"]))
    assert len(lists) == count
    return lists


def test_a_score_halves_with_every_half_life_and_counts_by_type(tmp_path: Path) -> None:
    events = [event("tea0", days=14), event("tea0", "view", days=28), event("tea1", "cart"), event("cup4", days=400)]
    with scratch(tmp_path / "out") as work:
        filled(work, tmp_path, events)
        scores = score_items(work, PopularitySettings(), len(ITEMS), before=None, reference=NOW)
    assert scores == pytest.approx([5 / 2 + 1 / 4, 3, 0, 0, 5 * 2 ** (-400 / 14), 0, 0], abs=1e-8)


def test_what_comes_after_a_time_takes_no_part_before_it(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work:
        filled(work, tmp_path, [event("tea0", days=3), event("tea1", days=2), event("tea1", days=1)])
        before: datetime = NOW - timedelta(days=2)
        scores = score_items(work, PopularitySettings(), len(ITEMS), before=before, reference=before)
    assert scores.nonzero()[0].tolist() == [0]
    assert scores[0] == pytest.approx(5 * 2 ** (-1 / 14))


def test_scaling_keeps_the_order_and_ends_at_one() -> None:
    assert scaled(np.array([0.0, 1, 3])).tolist() == pytest.approx([0, math.log(2) / math.log(4), 1])
    assert scaled(np.zeros(3)).tolist() == [0, 0, 0]


def test_lists_are_by_region_and_category_best_first_and_filled_up(tmp_path: Path) -> None:
    events = [
        event("tea1", region="north"),
        event("tea0", region="south"),
        event("tea0", region="south"),
        event("cup3", "view", region="north"),
        event("hidden2", region="north"),
    ]
    with scratch(tmp_path / "out") as work:
        filled(work, tmp_path, events)
        lists = lists_of(work, tmp_path, PopularitySettings())
    assert lists[None, None] == [(0, 10), (1, 5), (3, 1), (4, 0), (5, 0), (6, 0)]
    assert lists[None, "tea"] == [(0, 10), (1, 5)]
    assert lists[None, "cups"] == [(3, 1), (4, 0)]
    assert lists[None, "jars"] == [(6, 0)]
    assert lists["north", None] == [(1, 5), (3, 1), (0, 0), (4, 0), (5, 0), (6, 0)]
    assert lists["south", None] == [(0, 10), (1, 0), (4, 0), (5, 0), (6, 0)]
    assert lists["north", "tea"] == [(1, 5), (0, 0)]
    assert lists["north", "cups"] == [(3, 1), (4, 0)]
    assert lists["south", "tea"] == [(0, 10), (1, 0)]
    assert ("south", "jars") not in lists


def test_an_item_sold_in_a_region_where_it_may_no_longer_be_shown_is_not_shown_there(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work:
        filled(work, tmp_path, [event("cup3", region="south"), event("cup4", "view", region="south")])
        lists = lists_of(work, tmp_path, PopularitySettings())
    assert lists["south", "cups"] == [(4, 1)]
    assert 3 not in [row for row, _ in lists["south", None]]


def test_lists_are_cut_at_their_length(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work:
        filled(work, tmp_path, [event("cup4", region="north"), event("tea1", region="south")])
        lists = lists_of(work, tmp_path, PopularitySettings(list_length=1))
    assert {key: [row for row, _ in entries] for key, entries in lists.items()} == {
        (None, None): [1],
        (None, "tea"): [1],
        (None, "cups"): [4],
        (None, "jars"): [6],
        ("north", None): [4],
        ("north", "cups"): [4],
        ("south", None): [1],
        ("south", "tea"): [1],
    }


def test_without_events_every_list_stands_in_row_order(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work:
        filled(work, tmp_path, [])
        lists = lists_of(work, tmp_path, PopularitySettings())
    assert [row for row, _ in lists[None, None]] == [0, 1, 3, 4, 5, 6]
    assert [row for row, _ in lists["north", None]] == [0, 1, 3, 4, 5, 6]
    assert [row for row, _ in lists["north", "cups"]] == [3, 4]
