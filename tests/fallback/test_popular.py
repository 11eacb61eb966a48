from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fallback.ladder import Rung
from fallback.popular import Popular
from indexer.contract.popular import SCHEMA
from tests.properties import examples

Lists = dict[tuple[str | None, str | None], list[int]]
NAMES = st.sampled_from([None, "north", "tea", "é", " "])
SHOP: Lists = {
    (None, None): [0, 1, 2, 3],
    ("north", None): [3, 2],
    (None, "tea"): [1, 0],
    ("north", "tea"): [0],
    (None, "cups"): [2],
}


def save(path: Path, lists: Lists) -> Path:
    entries = [
        {"region": region, "category": category, "row": row, "score": 1 / (1 + place)}
        for (region, category), rows in lists.items()
        for place, row in enumerate(rows)
    ]
    pq.write_table(pa.Table.from_pylist(entries, schema=SCHEMA), path)
    return path


def ladder(lists: Popular, region: str, category: str) -> list[tuple[Rung, list[int]]]:
    return [(rung, rows.tolist()) for rung, rows, _ in lists.ladder(region, category)]


@pytest.fixture
def popular(tmp_path: Path) -> Popular:
    return Popular.load(save(tmp_path / "popular.parquet", SHOP), items=4)


def test_a_category_in_a_region_falls_to_the_category_then_to_the_region_then_to_all(popular: Popular) -> None:
    assert ladder(popular, "north", "tea") == [
        (Rung.POPULAR_CATEGORY, [0]),
        (Rung.POPULAR_CATEGORY, [1, 0]),
        (Rung.POPULAR, [3, 2]),
        (Rung.POPULAR, [0, 1, 2, 3]),
    ]


def test_without_a_category_no_category_rung_is_stood_on(popular: Popular) -> None:
    assert ladder(popular, "north", "") == [(Rung.POPULAR, [3, 2]), (Rung.POPULAR, [0, 1, 2, 3])]


def test_no_list_comes_twice_without_a_region(popular: Popular) -> None:
    assert ladder(popular, "", "") == [(Rung.POPULAR, [0, 1, 2, 3])]
    assert ladder(popular, "", "cups") == [(Rung.POPULAR_CATEGORY, [2]), (Rung.POPULAR, [0, 1, 2, 3])]


@pytest.mark.parametrize(("region", "category"), [("mars", "unheard of"), ("\x00", "None"), ("None", "")])
def test_what_no_list_is_kept_for_is_answered_by_the_overall_list(popular: Popular, region: str, category: str) -> None:
    assert ladder(popular, region, category) == [(Rung.POPULAR, [0, 1, 2, 3])]


def test_regions_are_those_with_a_list(popular: Popular) -> None:
    assert popular.regions == {"north"}


def test_scores_belong_to_their_rows(popular: Popular) -> None:
    ((_, rows, scores),) = popular.ladder("", "")
    assert scores.tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    assert (rows.dtype.name, scores.dtype.name) == ("int32", "float32")


def test_no_lists_at_all_are_an_empty_ladder(tmp_path: Path) -> None:
    empty = Popular.load(save(tmp_path / "popular.parquet", {}), items=1)
    assert ladder(empty, "north", "tea") == []
    assert empty.regions == frozenset()


@examples(100)
@given(st.dictionaries(st.tuples(NAMES, NAMES), st.lists(st.integers(0, 9), min_size=1, max_size=6), max_size=12))
def test_every_list_comes_back_as_it_was_written(tmp_path: Path, lists: Lists) -> None:
    popular = Popular.load(save(tmp_path / "popular.parquet", lists), items=10)
    for (region, category), rows in lists.items():
        rung = Rung.POPULAR_CATEGORY if category else Rung.POPULAR
        assert ladder(popular, region or "", category or "")[0] == (rung, rows)


@pytest.mark.parametrize("row", [-1, 4, 2**31 - 1])
def test_a_row_outside_the_snapshot_is_refused_by_name(tmp_path: Path, row: int) -> None:
    with pytest.raises(ValueError, match=r"popular\.parquet: row: outside 0 to 3"):
        Popular.load(save(tmp_path / "popular.parquet", {(None, None): [0, row]}), items=4)


def test_a_score_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "popular.parquet"
    table = pa.table({"region": [None], "category": [None], "row": [0], "score": [float("nan")]}, schema=SCHEMA)
    pq.write_table(table, path)
    with pytest.raises(ValueError, match=r"popular\.parquet: score"):
        Popular.load(path, items=4)
