"""The synthetic catalogue: the same bytes for the same seed, named synthetic, and like what it was fitted to."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from indexer.bench import catalogue as rows_of_items
from indexer.bench import sessions as rows_of_sessions
from indexer.bench.counted import Counted
from indexer.bench.fit import figures
from indexer.bench.make import make
from indexer.bench.shop import Zipf, fit_shop
from indexer.progress import Silent, Stages
from services.cli import app

ITEMS = 6000
WORDS = ("Red", "Green", "Spicy", "Mild", "Whole", "Cut", "Dried", "Fresh", "Baby", "Large", "Plain", "Sweet")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop of 3,000 products in six aisles, some of equal text, and 2,000 baskets of 100 users."""
    folder = tmp_path_factory.mktemp("source")
    random = np.random.default_rng(3)
    products = []
    for number in range(3000):
        aisle = int(random.integers(6))
        words = " ".join([f"Kind{aisle}", *random.choice(WORDS, int(random.integers(1, 4)), replace=False)])
        size = f", {random.choice([4, 8, 16])} OZ" if random.random() < 0.7 else ""
        price = None if random.random() < 0.2 else float(np.round(random.uniform(1, 2) * (aisle + 1), 2))
        products.append((f"p{number}", words + size, f"Aisle {aisle}", "Own", "Food", price, True, None))
    columns = dict(zip(rows_of_items.SCHEMA.names, map(list, zip(*products, strict=True)), strict=True))
    pq.write_table(pa.table(columns, schema=rows_of_items.SCHEMA), folder / "catalogue.parquet")
    session = np.repeat(np.arange(2000), 6)
    item = (3000 * random.random(len(session)) ** 4).astype(int)
    pq.write_table(
        pa.table(
            {
                "event_id": [str(number) for number in range(len(session))],
                "session_id": pc.cast(session, pa.string()),
                "user_id": pc.cast(session % 100, pa.string()),
                "item_id": [f"p{each}" for each in item],
                "type": pa.DictionaryArray.from_arrays(np.zeros(len(session), np.int32), ["purchase"]),
                "occurred_at": pa.array(session * 60_000_000).cast(pa.timestamp("us", "UTC")),
                "region": pa.DictionaryArray.from_arrays((session % 4).astype(np.int32), ["n", "e", "s", "w"]),
            },
            schema=rows_of_sessions.SCHEMA,
        ),
        folder / "events.parquet",
    )
    return folder


def made(source: Path, out: Path, *, items: int = ITEMS, seed: int = 5) -> dict[str, object]:
    return make(
        source / "catalogue.parquet",
        source / "events.parquet",
        out,
        items=items,
        sessions=None,
        seed=seed,
        stages=Stages(Silent()),
    )


def digests(folder: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(source: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 5), ("two", 5), ("other", 6)):
        made(source, tmp_path / name, seed=seed)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert not set(digests(tmp_path / "one")) & set(digests(tmp_path / "other"))


def test_rows_do_not_depend_on_the_chunks_they_are_written_in(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(source, tmp_path / "whole")
    monkeypatch.setattr(rows_of_items, "CHUNK", 777)
    monkeypatch.setattr(rows_of_sessions, "CHUNK", 101)
    made(source, tmp_path / "parts")
    for name in ("catalogue.parquet", "events.parquet"):
        assert pq.read_table(tmp_path / "parts" / name).equals(pq.read_table(tmp_path / "whole" / name))


def test_it_is_called_synthetic_in_its_ids_its_files_and_its_summary(source: Path, tmp_path: Path) -> None:
    summary = made(source, tmp_path)
    items, events = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("catalogue", "events"))
    assert items.num_rows == pc.count_distinct(items["item_id"]).as_py() == ITEMS
    for column in (items["item_id"], events["item_id"], events["user_id"], events["session_id"]):
        assert pc.all(pc.starts_with(column, "synthetic-")).as_py()
    assert all(b"synthetic" in table.schema.metadata[b"feedline.synthetic"] for table in (items, events))
    assert summary["synthetic"] is True
    assert str(summary["made_by"]).startswith("synthetic: ")


def test_words_lengths_prices_and_duplicates_are_those_of_the_source(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path)
    real, ours = (
        figures(folder / "catalogue.parquet", folder / "events.parquet", threads=1, memory_limit_mb=512)
        for folder in (source, tmp_path)
    )
    assert ours["words"] <= real["words"]
    assert ours["categories"] == real["categories"]
    assert ours["title_characters"] == pytest.approx(real["title_characters"], rel=0.3)
    assert ours["price_p10_p50_p90"] == pytest.approx(real["price_p10_p50_p90"], rel=0.25)
    assert ours["unpriced_share"] == pytest.approx(real["unpriced_share"], abs=0.05)
    assert ours["items_of_equal_text_share"] == pytest.approx(real["items_of_equal_text_share"], abs=0.25)  # few words


def test_items_stay_in_their_aisle_and_sessions_in_few_of_them(source: Path, tmp_path: Path) -> None:
    made(source, tmp_path)
    items, events = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("catalogue", "events"))
    kinds = [title.split()[0].rstrip(",") for title in items["title"].to_pylist()]
    aisles = [f"Kind{category.split()[1]}" for category in items["category"].to_pylist()]
    assert np.mean([kind == aisle for kind, aisle in zip(kinds, aisles, strict=True)]) > 0.95
    moments = events["occurred_at"].to_pylist()
    assert min(moments).year == 1970
    row = pc.index_in(events["item_id"], items["item_id"].combine_chunks()).to_numpy()
    pair = np.stack([events["session_id"].to_numpy(), row.astype(str).astype(object)], axis=1)
    assert len({tuple(each) for each in pair}) == len(pair)  # a basket holds an item once


def test_the_zipf_law_and_its_inverse_agree() -> None:
    law = Zipf(1.3, 0.01)
    shares = np.linspace(0, 0.999, 50)
    np.testing.assert_allclose(law.below(law.quantile(shares)), shares, atol=1e-9)
    assert np.all(np.diff(law.quantile(shares)) > 0)


def test_numbers_depend_on_their_place_and_nothing_else() -> None:
    random = Counted(1)
    assert np.array_equal(random.bits("a", np.arange(100))[40:50], random.bits("a", np.arange(40, 50)))
    assert not np.array_equal(random.bits("a", np.arange(9)), random.bits("b", np.arange(9)))
    drawn = random.below(np.full(20_000, 7), "c", np.arange(20_000), 3)
    assert np.abs(np.bincount(drawn) / 20_000 - 1 / 7).max() < 0.01


def test_an_empty_source_is_named(source: Path) -> None:
    items, events = (pq.read_table(source / f"{name}.parquet") for name in ("catalogue", "events"))
    with pytest.raises(ValueError, match="not empty tables"):
        fit_shop(items, events.slice(0, 0))


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(app, ["bench", "catalogue", "--items", "10", "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "feedline[demo]" in result.output
