"""Events from the user's files: what takes part, what is counted and left out, and what is bad."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from indexer.errors import InputError, SettingsError, TooManyBadRows
from indexer.settings import EventColumns, EventSettings
from indexer.workspace import Workspace
from tests.indexer.shop import KINDS, NOW, load_items, load_shopping, quarantined, scratch, write

FIT = {"event_id": "e", "session_id": "s", "item_id": "007", "type": "view", "occurred_at": "2026-05-01T10:00:00Z"}
UNREADABLE = "is neither ISO 8601 nor seconds or milliseconds since 1970"
LATE = (NOW + timedelta(minutes=5, seconds=1)).isoformat()
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"item_id": None}, "item_id", "is missing"),
    ({"item_id": "7"}, "item_id", "is not in the catalogue"),
    ({"session_id": ""}, "session_id", "is missing"),
    ({"occurred_at": None}, "occurred_at", "is missing"),
    ({"occurred_at": "yesterday"}, "occurred_at", UNREADABLE),
    ({"occurred_at": "2026-02-30"}, "occurred_at", UNREADABLE),
    ({"occurred_at": "infinity"}, "occurred_at", UNREADABLE),
    ({"occurred_at": "1e300"}, "occurred_at", UNREADABLE),
    ({"occurred_at": "20260501"}, "occurred_at", UNREADABLE),
    ({"occurred_at": "-1777629600"}, "occurred_at", UNREADABLE),
    ({"occurred_at": "1777629600000000"}, "occurred_at", UNREADABLE),
    ({"occurred_at": LATE}, "occurred_at", "is in the future"),
    ({"type": "returned"}, "type", "is not in index.events.type_names"),
    ({"region": "r" * 257}, "region", "is longer than 256 bytes or has control characters"),
]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def catalogue(work: Workspace, tmp_path: Path) -> None:
    rows = [{"item_id": each, "title": each} for each in ("a", "007", "b")]
    load_items(work, write(tmp_path / "catalogue.jsonl", rows))


def kept(work: Workspace) -> list[tuple[Any, ...]]:
    return work.sql.sql("select row, type, moment, region from events order by moment, row").fetchall()


def test_every_kind_of_bad_row_is_set_aside_with_its_number_field_and_reason(tmp_path: Path, kind: str) -> None:
    rows = [
        FIT,
        *({**FIT, "event_id": f"bad{at}", **bad} for at, (bad, _, _) in enumerate(BAD)),
        {**FIT, "event_id": "z"},
    ]
    source = write(tmp_path / f"events.{kind}", rows)
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        events, quarantine = load_shopping(work, source)
        assert quarantined(quarantine) == [(row, field, reason) for row, (_, field, reason) in enumerate(BAD, 2)]
        assert (events.rows, events.bad, events.kept) == (len(BAD) + 2, len(BAD), 2)


def test_broken_lines_are_counted_among_the_bad(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("session_id,item_id,occurred_at\ns,007,2026-05-01\ns,007\n")
    (tmp_path / "events.jsonl").write_text(
        '{"session_id": "s", "item_id": "007", "occurred_at": 1777629600}\n{"session\n'
    )
    for name in ("events.csv", "events.jsonl"):
        with scratch(tmp_path / name.replace(".", "-")) as work:
            catalogue(work, tmp_path)
            events, quarantine = load_shopping(work, tmp_path / name)
            assert (events.rows, events.bad, events.kept) == (2, 1, 1)
            assert [row for row, _, _ in quarantined(quarantine)] == [2]


def test_times_are_read_in_every_form_that_is_promised(tmp_path: Path) -> None:
    written = {
        "2026-05-01T10:00:00Z": 10,
        "2026-05-01 12:00:00+02:00": 10,
        "2026-05-01T10:00": 10,
        "2026-05-01": 0,
        " 2026-05-01T10:00Z ": 10,
        "1777629600": 10,
        "1777629600000": 10,
        "1777629600.0": 10,
        "2026-05-01 10:00:00.000000000": 10,
    }
    rows = [{**FIT, "event_id": text, "occurred_at": text} for text in written]
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        _, quarantine = load_shopping(work, write(tmp_path / "events.csv", rows))
        assert quarantined(quarantine) == []
        moments = work.sql.sql("select moment from events").fetchall()
    assert [moment.replace(tzinfo=UTC) for (moment,) in moments] == [
        datetime(2026, 5, 1, hour, tzinfo=UTC) for hour in written.values()
    ]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([datetime(2026, 5, 1, 10, tzinfo=UTC)], pa.timestamp("ns", "UTC")),
        pa.array([datetime(2026, 5, 1, 10, tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin")),
        pa.array([datetime(2026, 5, 1, 10)], pa.timestamp("ms")),  # noqa: DTZ001 - without a zone it is UTC
        pa.array([1777629600], pa.int64()),
        pa.array([1777629600000.0], pa.float64()),
    ],
)
def test_times_of_parquet_are_instants(tmp_path: Path, column: pa.Array) -> None:
    table = pa.table({"session_id": [1], "item_id": ["007"], "occurred_at": column})
    pq.write_table(table, tmp_path / "events.parquet")
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        load_shopping(work, tmp_path / "events.parquet")
        assert kept(work) == [(1, 5, datetime(2026, 5, 1, 10), None)]  # noqa: DTZ001


def test_a_repeated_event_id_counts_once_and_events_without_one_all_count(tmp_path: Path, kind: str) -> None:
    rows: list[dict[str, Any]] = [
        FIT,
        FIT,
        {**FIT, "event_id": None},
        {**FIT, "event_id": None},
        {**FIT, "item_id": "unknown"},
    ]
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        events, _ = load_shopping(work, write(tmp_path / f"events.{kind}", rows))
        assert (events.repeated, events.bad, events.kept) == (1, 1, 3)


def test_until_leaves_out_what_came_later_and_counts_it(tmp_path: Path) -> None:
    times = ["2026-04-01", "2026-04-02T00:00:00", "2026-04-02T00:00:01"]
    rows = [{**FIT, "event_id": str(at), "occurred_at": time} for at, time in enumerate(times)]
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        source = write(tmp_path / "events.csv", rows)
        events, quarantine = load_shopping(work, source, until=datetime(2026, 4, 2, tzinfo=UTC))
        assert (events.kept, events.later, events.bad) == (2, 1, 0)
        assert events.last == datetime(2026, 4, 2, tzinfo=UTC)
        assert quarantine.written is None


def test_impressions_are_counted_and_take_no_part(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        rows = [FIT, {**FIT, "event_id": "f", "type": "impression"}]
        events, _ = load_shopping(work, write(tmp_path / "events.jsonl", rows))
        assert (events.impressions, events.kept) == (1, 1)


def test_the_words_for_types_are_the_users_and_an_absent_one_has_a_default(tmp_path: Path) -> None:
    settings = EventSettings(type_names={"Bought": "purchase", "seen": "view"}, default_type="click")
    words: list[str | None] = ["BOUGHT ", "seen", None, "Cart"]
    rows: list[dict[str, Any]] = [{**FIT, "event_id": str(at), "type": word} for at, word in enumerate(words)]
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        load_shopping(work, write(tmp_path / "events.csv", rows), settings)
        assert [kind for _, kind, _, _ in kept(work)] == [5, 2, 3, 4]


def test_sessions_of_two_tenants_with_one_id_are_two(tmp_path: Path) -> None:
    rows = [{**FIT, "event_id": str(at), "tenant": tenant} for at, tenant in enumerate(("a", "b", "a"))]
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        assert load_shopping(work, write(tmp_path / "events.csv", rows))[0].sessions == 2


def test_columns_are_named_in_the_settings_and_a_missing_one_is_named(tmp_path: Path) -> None:
    source = write(tmp_path / "events.csv", [{"basket": 1, "sku": "007", "at": "2026-05-01"}])
    columns = EventColumns(session_id="basket", item_id="sku", occurred_at="at")
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        assert load_shopping(work, source, EventSettings(columns=columns))[0].kept == 1
        with pytest.raises(
            SettingsError, match=r"no column 'session_id'.*set index.events.columns.session_id to one of: 'basket'"
        ):
            load_shopping(work, source)


def test_no_events_are_events_too(tmp_path: Path) -> None:
    (tmp_path / "zero.csv").touch()
    (tmp_path / "zero.jsonl").touch()
    (tmp_path / "header.csv").write_text("session_id,item_id,occurred_at\n")
    nothing = {name: pa.array([], pa.string()) for name in ("session_id", "item_id", "occurred_at")}
    pq.write_table(pa.table(nothing), tmp_path / "rows.parquet")
    pq.write_table(pa.table({}), tmp_path / "columns.parquet")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / ".export.lock").touch()
    for name in ("zero.csv", "zero.jsonl", "header.csv", "rows.parquet", "columns.parquet", "folder"):
        with scratch(tmp_path / "out") as work:
            catalogue(work, tmp_path)
            events, _ = load_shopping(work, tmp_path / name)
            assert (events.rows, events.kept, events.sessions, events.last) == (0, 0, 0, None)


def test_a_parquet_file_of_no_bytes_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "zero.parquet").touch()
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        with pytest.raises(InputError, match="cannot be read as Parquet"):
            load_shopping(work, tmp_path / "zero.parquet")


def test_past_the_limit_the_build_stops(tmp_path: Path) -> None:
    rows = [{**FIT, "event_id": str(at), "item_id": "gone" if at < 2 else "007"} for at in range(20)]
    with scratch(tmp_path / "out") as work:
        catalogue(work, tmp_path)
        with pytest.raises(
            TooManyBadRows, match=r"2 of 20 events rows are bad .* 2 x events item_id is not in the catalogue"
        ):
            load_shopping(work, write(tmp_path / "events.csv", rows), EventSettings())
