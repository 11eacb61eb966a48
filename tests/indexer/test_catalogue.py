"""Items from the user's files: what is kept, as it was given, and what is set aside, with its row and reason."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer.errors import InputError, SettingsError, TooManyBadRows
from indexer.settings import CatalogueColumns, CatalogueSettings
from tests.indexer.shop import KINDS, items_of, load_items, quarantined, scratch, write

FIT = {"item_id": "ok", "title": "A fine thing", "category": "tea", "price": 2.5}
LONG = "x" * 257


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


UNFIT = "is longer than 256 bytes or has control characters"
EMPTY = "is empty, and so are category, brand and description"
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"item_id": None}, "item_id", "is missing"),
    ({"item_id": ""}, "item_id", "is missing"),
    ({"item_id": "ok"}, "item_id", "is a duplicate: the first row with it counts"),
    ({"item_id": LONG}, "item_id", UNFIT),
    ({"item_id": "a\x07b"}, "item_id", UNFIT),
    ({"item_id": "a\u0085b"}, "item_id", UNFIT),
    ({"title": "bell\x07"}, "title", "has control characters"),
    ({"category": LONG}, "category", UNFIT),
    ({"title": "", "category": None}, "title", EMPTY),
    ({"title": " \n ", "category": " "}, "title", EMPTY),
    ({"price": float("nan")}, "price", "is not a finite number"),
    ({"price": float("inf")}, "price", "is not a finite number"),
    ({"price": 1e39}, "price", "is not a finite number"),
    ({"price": -0.01}, "price", "is negative"),
]
NO_VALUES: list[tuple[dict[str, Any], str, str]] = [
    ({"price": "12,50"}, "price", "is not a number"),
    ({"price": "free"}, "price", "is not a number"),
    ({"available": "perhaps"}, "available", "is neither true nor false"),
]


def test_every_kind_of_bad_row_is_set_aside_with_its_number_field_and_reason(tmp_path: Path, kind: str) -> None:
    cases = BAD if kind == "parquet" else BAD + NO_VALUES
    rows = [
        FIT,
        *({**FIT, "item_id": f"bad{at}", **bad} for at, (bad, _, _) in enumerate(cases)),
        {**FIT, "item_id": "z"},
    ]
    source = write(tmp_path / f"items.{kind}", rows, types={"item_id": pa.string(), "price": pa.float64()})
    with scratch(tmp_path / "out") as work:
        quarantine = load_items(work, source)
        assert quarantined(quarantine) == [(row, field, reason) for row, (_, field, reason) in enumerate(cases, 2)]
        assert quarantine.counts["catalogue price is not a finite number"] == 3
        assert [item["item_id"] for item in items_of(work)] == ["ok", "z"]


def test_rows_that_are_no_csv_are_set_aside(tmp_path: Path) -> None:
    source = tmp_path / "items.csv"
    source.write_bytes(
        b'\xef\xbb\xbfitem_id,title\r\n1,one\r\n2\r\n3,three,more\r\n\r\n4,fo\xffur\r\n5,five\r\n6,"six\nlines"\r\n'
        b'7,"' + b"x" * 200_000 + b"\r\n8,eight\r\n"
    )
    with scratch(tmp_path / "out") as work:
        quarantine = load_items(work, source)
        assert [item["item_id"] for item in items_of(work)] == ["1", "5", "6", "8"]
        assert items_of(work)[2]["title"] == "six lines"
        found = quarantined(quarantine)
    assert [row for row, _, _ in found] == [2, 3, 4, 7]
    assert found[0] == (2, "", "has 1 values, the header has 2")
    assert found[1] == (3, "", "has 3 values, the header has 2")
    assert found[2] == (4, "title", "is not UTF-8")
    assert "field larger than field limit" in found[3][2]


def test_rows_that_are_no_json_object_are_set_aside(tmp_path: Path) -> None:
    source = tmp_path / "items.jsonl"
    source.write_bytes(
        b'{"item_id": "1", "title": "one"}\n{"item_id": "2",\n[3]\n\n{"item_id": "4", "title": "fo\xffur"}\n'
        b'{"item_id": "5", "title": {"en": "five"}}\n{"item_id": "6", "title": "\\ud800"}\n'
        b'{"item_id": "7", "title": "' + b"x" * (1 << 20) + b'"}\n{"item_id": "8", "title": "eight"}'
    )
    with scratch(tmp_path / "out") as work:
        quarantine = load_items(work, source)
        assert [item["item_id"] for item in items_of(work)] == ["1", "8"]
        found = quarantined(quarantine)
    assert [row for row, _, _ in found] == [2, 3, 4, 5, 6, 7]
    assert found[0][2].startswith("is not JSON: ")
    assert found[1] == (3, "", "is a JSON list, not an object")
    assert found[2] == (4, "title", "is not UTF-8")
    assert found[3] == (5, "title", "is a dict, not a text or a number")
    assert found[4] == (6, "title", "is not UTF-8")
    assert found[5] == (7, "", "line is longer than 1048576 bytes")


def test_broken_lines_are_counted_by_what_is_wrong_with_them_wherever_it_is(tmp_path: Path) -> None:
    source = tmp_path / "items.jsonl"
    source.write_text("".join(f'{{"item_id": "{"7" * at}", "title": "cut\n' for at in range(1, 20)) + json.dumps(FIT))
    with scratch(tmp_path / "out") as work:
        assert list(load_items(work, source).counts.values()) == [19]


def test_text_in_parquet_that_is_not_utf8_is_set_aside(tmp_path: Path) -> None:
    table = pa.table({"item_id": ["1", "2"], "title": pa.array([b"one", b"tw\xffo"], pa.binary())})
    pq.write_table(table, tmp_path / "items.parquet")
    with scratch(tmp_path / "out") as work:
        assert quarantined(load_items(work, tmp_path / "items.parquet")) == [(2, "title", "is not UTF-8")]


def test_ids_stay_as_they_were_given(tmp_path: Path, kind: str) -> None:
    ids = ["007", "7", " 7", "7.0", "-0", "1e3", "é", "e\u0301", "nan", "null"]
    source = write(tmp_path / f"items.{kind}", [{**FIT, "item_id": each} for each in ids])
    with scratch(tmp_path / "out") as work:
        load_items(work, source)
        assert [item["item_id"] for item in items_of(work)] == ids


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_numbers_as_ids_are_written_in_decimal(tmp_path: Path, kind: str) -> None:
    rows = [{**FIT, "item_id": 7}, {**FIT, "item_id": 12_345_678_901}]
    with scratch(tmp_path / "out") as work:
        load_items(work, write(tmp_path / f"items.{kind}", rows))
        assert [item["item_id"] for item in items_of(work)] == ["7", "12345678901"]


def test_a_column_of_integers_that_has_gaps_and_became_floats_keeps_its_integers(tmp_path: Path) -> None:
    table = pa.table({"item_id": [7.0, float("nan"), 31198570044.0], "title": ["a", "b", "c"]})
    pq.write_table(table, tmp_path / "items.parquet")
    with scratch(tmp_path / "out") as work:
        quarantine = load_items(work, tmp_path / "items.parquet")
        assert [item["item_id"] for item in items_of(work)] == ["7", "31198570044"]
        assert quarantined(quarantine) == [(2, "item_id", "is missing")]


def test_of_rows_with_one_id_the_first_usable_one_counts(tmp_path: Path, kind: str) -> None:
    rows = [{**FIT, "price": -1.0}, {**FIT, "price": 3.0}, {**FIT, "price": 4.0}]
    with scratch(tmp_path / "out") as work:
        quarantine = load_items(work, write(tmp_path / f"items.{kind}", rows))
        assert [item["price"] for item in items_of(work)] == [3.0]
        assert [row for row, _, _ in quarantined(quarantine)] == [1, 3]


def test_what_an_item_lacks_is_unknown_and_not_wrong(tmp_path: Path, kind: str) -> None:
    rows = [
        {**FIT, "price": None, "available": None, "brand": None, "regions": None},
        {**FIT, "item_id": "b", "price": 0.0, "available": False, "brand": "B", "regions": ["DE", "FR "]},
    ]
    if kind == "csv":
        rows = [{**row, "regions": "|".join(row["regions"] or [])} for row in rows]  # type: ignore[arg-type]
    with scratch(tmp_path / "out") as work:
        quarantine = load_items(work, write(tmp_path / f"items.{kind}", rows))
        assert quarantined(quarantine) == []
        first, second = items_of(work)
    assert (first["price"], first["available"], first["brand"], first["regions"]) == (None, True, None, None)
    assert (second["price"], second["available"], second["brand"], second["regions"]) == (0.0, False, "B", ["DE", "FR"])


def test_availability_is_read_as_people_write_it(tmp_path: Path) -> None:
    written = {"Yes": True, "0": False, "F": False, "1": True, "": True, " no ": False}
    rows = [{**FIT, "item_id": f"i{at}", "available": text} for at, text in enumerate(written)]
    with scratch(tmp_path / "out") as work:
        load_items(work, write(tmp_path / "items.csv", rows))
        assert [item["available"] for item in items_of(work)] == list(written.values())


def test_the_text_to_encode_is_title_category_brand_description_on_one_line(tmp_path: Path) -> None:
    rows = [
        {
            "item_id": "a",
            "title": " Red\n kettle ",
            "category": "kitchen",
            "brand": "Acme",
            "description": "Boils.\tFast",
        },
        {"item_id": "b", "title": "Red kettle", "category": "kitchen", "brand": "Acme", "description": "Boils. Fast"},
        {"item_id": "c", "title": "", "category": "kitchen"},
    ]
    with scratch(tmp_path / "out") as work:
        load_items(work, write(tmp_path / "items.jsonl", rows))
        texts = work.sql.sql("select text from texts order by text_no").fetchall()
        assert texts == [("Red kettle. kitchen. Acme. Boils. Fast",), ("kitchen",)]
        assert [item["text_no"] for item in items_of(work)] == [0, 0, 1]


def test_columns_are_named_in_the_settings(tmp_path: Path) -> None:
    source = write(tmp_path / "items.csv", [{"SKU": "a", "name": "thing", "cost": 3}])
    columns = CatalogueColumns(item_id="SKU", title="name", price="cost")
    with scratch(tmp_path / "out") as work:
        load_items(work, source, CatalogueSettings(columns=columns))
        assert items_of(work)[0]["price"] == 3.0


@pytest.mark.parametrize(
    ("columns", "missing", "setting"),
    [
        ({}, "'item_id'", "index.catalogue.columns.item_id"),
        ({"item_id": "SKU", "brand": "maker"}, "'maker'", "index.catalogue.columns.brand"),
    ],
)
def test_a_missing_column_is_named_with_its_setting_and_what_exists(
    tmp_path: Path, kind: str, columns: dict[str, str], missing: str, setting: str
) -> None:
    source = write(tmp_path / f"items.{kind}", [{"SKU": "a", "title": "thing"}])
    with scratch(tmp_path / "out") as work, pytest.raises(SettingsError) as error:
        load_items(work, source, CatalogueSettings(columns=CatalogueColumns(**columns)))
    for part in (str(source), missing, setting, "'SKU', 'title'"):
        assert part in str(error.value)


def test_a_folder_is_read_file_by_file_in_order_of_name(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "items"
    (folder / "sub").mkdir(parents=True)
    write(folder / f"b.{kind}", [{**FIT, "item_id": "2"}, {**FIT, "item_id": "1"}])
    write(folder / f"a.{kind}", [{**FIT, "item_id": "1"}, {**FIT, "item_id": ""}])
    write(folder / "sub" / f"c.{kind}", [{**FIT, "item_id": "3"}])
    (folder / "_SUCCESS").touch()
    with scratch(tmp_path / "out") as work:
        quarantine = load_items(work, folder)
        assert [item["item_id"] for item in items_of(work)] == ["1", "2", "3"]
        entries = [json.loads(line) for line in quarantine.path.read_text().splitlines()]
    assert [(Path(each["file"]).name, each["row"]) for each in entries] == [(f"a.{kind}", 2), (f"b.{kind}", 2)]


def test_a_folder_may_hold_files_of_several_kinds(tmp_path: Path) -> None:
    folder = tmp_path / "items"
    folder.mkdir()
    for kind in KINDS:
        write(folder / f"items.{kind}", [{**FIT, "item_id": kind}])
    with scratch(tmp_path / "out") as work:
        load_items(work, folder)
        assert [item["item_id"] for item in items_of(work)] == ["csv", "jsonl", "parquet"]


def test_a_long_title_is_encoded_whole_and_shown_by_its_beginning(tmp_path: Path, kind: str) -> None:
    title = "é" * 500
    with scratch(tmp_path / "out") as work:
        load_items(work, write(tmp_path / f"items.{kind}", [{**FIT, "title": title}]))
        assert items_of(work)[0]["title"] == title[:200]
        assert work.sql.sql("select text from texts").fetchall() == [(f"{title}. tea",)]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_files_may_be_compressed(tmp_path: Path, kind: str) -> None:
    plain = write(tmp_path / f"items.{kind}", [FIT])
    packed = tmp_path / f"items.{kind}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    with scratch(tmp_path / "out") as work:
        load_items(work, packed)
        assert len(items_of(work)) == 1


def test_tsv_has_tabs_and_csv_the_delimiter_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "items.tsv").write_text("item_id\ttitle\n1\tone, two\n")
    (tmp_path / "items.csv").write_text("item_id;title\n1;one, two\n")
    for name in ("items.tsv", "items.csv"):
        with scratch(tmp_path / "out") as work:
            load_items(work, tmp_path / name, CatalogueSettings(delimiter=";"))
            assert items_of(work)[0]["title"] == "one, two"


def test_what_cannot_be_read_as_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").touch()
    (tmp_path / "zero.parquet").touch()
    (tmp_path / "zero.csv").touch()
    (tmp_path / "header.csv").write_text("item_id,title\n")
    (tmp_path / "items.xlsx").touch()
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"item_id,title\n1,one\n" * 1000)[:-20])
    (tmp_path / "mac.csv").write_text("item_id,title\r1,one\r")
    (tmp_path / "twice.csv").write_text("item_id,title,title\n1,one,two\n")
    pq.write_table(pa.table({"item_id": ["1"], "title": [{"en": "one"}]}), tmp_path / "struct.parquet")
    expected = {
        "empty": "the catalogue holds no rows",
        "notes": "expected .parquet, .csv, .tsv, .jsonl or .ndjson",
        "zero.parquet": "cannot be read as Parquet",
        "zero.csv": "the catalogue holds no rows",
        "header.csv": "the catalogue holds no rows",
        "items.xlsx": "expected .parquet, .csv, .tsv, .jsonl or .ndjson",
        "absent.csv": "no such file or folder",
        "cut.csv.gz": "cannot be read",
        "mac.csv": "its first line is no CSV header",
        "twice.csv": "column 'title' for title stands there twice",
        "struct.parquet": "column 'title' for title is of type struct",
    }
    for name, message in expected.items():
        with scratch(tmp_path / "out") as work, pytest.raises((InputError, SettingsError)) as error:
            load_items(work, tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
        assert message in str(error.value)


def test_a_catalogue_without_a_usable_row_says_where_the_reasons_are(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work, pytest.raises(InputError, match="none of the 1 rows is a usable item; see"):
        load_items(work, write(tmp_path / "items.csv", [{**FIT, "price": -1}]))


def test_past_the_limit_the_build_stops_and_says_why_and_where(tmp_path: Path, kind: str) -> None:
    rows = [{**FIT, "item_id": f"i{at}", "price": -1.0 if at < 2 else 1.0} for at in range(30)]
    source = write(tmp_path / f"items.{kind}", rows)
    with scratch(tmp_path / "out") as work:
        with pytest.raises(TooManyBadRows) as error:
            load_items(work, source, CatalogueSettings())
        assert str(error.value).startswith(
            "2 of 30 catalogue rows are bad (6.7%), index.catalogue.max_bad_share allows 5.0%"
        )
        assert "2 x catalogue price is negative" in str(error.value)
        kept = Path(str(error.value).rsplit(": ", 1)[1])
        assert len(kept.read_text().splitlines()) == 2
        load_items(work, source, CatalogueSettings(max_bad_share=2 / 30))


def test_only_the_newest_quarantine_files_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number:02}.jsonl").touch()
    with scratch(folder) as work:
        load_items(work, write(tmp_path / "items.csv", [FIT, {**FIT, "price": -1}]))
    assert len(list(folder.glob("*.jsonl"))) == 30
    assert (folder / "39.jsonl").exists()
