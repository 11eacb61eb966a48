from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from indexer.contract.items import ItemTable
from indexer.item_files import write_id_index, write_items
from tests.indexer.shop import load_items, scratch, write


def test_what_the_service_reads_is_what_the_catalogue_says_and_equal_texts_are_variants(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"item_id": "b", "title": "Green tea", "category": "tea", "brand": "Yun", "price": 2.5, "available": True},
        {"item_id": "a", "title": "Cup", "category": "cups", "brand": None, "price": None, "available": True},
        {"item_id": "c", "title": "Green tea", "category": "tea", "brand": "Yun", "price": 9.0, "available": False},
        {"item_id": "d", "title": "Green tea", "category": "tea", "brand": "Assam", "price": 2.5, "available": True},
    ]
    source = write(tmp_path / "items.jsonl", rows)
    with scratch(tmp_path / "out") as work:
        load_items(work, source)
        write_items(work, np.array([1, 0.5, 0.25, 0], np.float32), tmp_path / "items.parquet")
        write_id_index(work, 4, tmp_path / "id_index.npy")
    shop = ItemTable.load(tmp_path / "items.parquet", tmp_path / "id_index.npy")
    assert [shop.item_id(row) for row in range(4)] == ["b", "a", "c", "d"]
    assert shop.variant[0] == shop.variant[2]
    assert len({int(shop.variant[row]) for row in (0, 1, 3)}) == 3
    assert shop.brand.tolist() == [1, -1, 1, 0]
    assert shop.popularity.tolist() == [1, 0.5, 0.25, 0]
    assert shop.available.tolist() == [True, True, False, True]
    assert np.isnan(shop.price[1])
