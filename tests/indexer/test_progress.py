"""What a person sees: rates and remaining time, gates by name, settings by key and range, a summary that adds up."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from indexer.errors import GateFailed
from indexer.gates import Gate, gates, overridden
from indexer.progress import Bars, PlainLines, Silent, Stages, reporter_for
from indexer.settings import GateSettings, IndexSettings
from indexer.summary import BuildSummary, table_of
from tests.clock import ManualClock


def test_plain_lines_say_rate_and_remaining_time_every_few_seconds() -> None:
    clock, out = ManualClock(), io.StringIO()
    with PlainLines(out, clock).stage("encode", 100, "texts") as advance:
        for _ in range(4):
            clock.advance(2.5)
            advance(10)
    assert out.getvalue().splitlines() == [
        "encode: 20 of 100 texts, 4/s, 20 s left",
        "encode: 40 of 100 texts, 4/s, 15 s left",
        "encode: done, 40 texts, 10.0 s",
    ]


def test_plain_lines_do_without_a_total_or_a_unit() -> None:
    clock, out = ManualClock(), io.StringIO()
    reporter = PlainLines(out, clock)
    with reporter.stage("events", None, "rows") as advance:
        clock.advance(5)
        advance(1000)
    with reporter.stage("tune", None, ""):
        clock.advance(1)
    assert out.getvalue().splitlines() == [
        "events: 1,000 rows, 200/s",
        "events: done, 1,000 rows, 5.0 s",
        "tune: done, 1.0 s",
    ]


def test_bars_are_for_terminals() -> None:
    out = io.StringIO()
    reporter = Bars(Console(file=out, force_terminal=True, width=120))
    with reporter.stage("encode", 10, "texts") as advance:
        advance(10)
    with reporter.stage("tune", None, ""):
        pass
    reporter.note("[not markup]")
    assert "10/10" in out.getvalue()
    assert "[not markup]" in out.getvalue()
    assert isinstance(reporter_for(io.StringIO()), PlainLines)


def test_stages_keep_their_seconds_in_order_and_add_up() -> None:
    clock = ManualClock()
    stages = Stages(Silent(), clock)
    for name, seconds in (("load", 1.0), ("encode", 2.0), ("load", 0.5)):
        with stages.stage(name):
            clock.advance(seconds)
    assert list(stages.seconds.items()) == [("load", 1.5), ("encode", 2.0)]


def check(**changed: Any) -> list[Gate]:
    given: dict[str, Any] = {
        "items": 80,
        "available": 1,
        "parent_items": 100,
        "recall": 0.95,
        "recall_floor": 0.95,
        "evaluation": evaluation(0.1, blend=0.1, parent=0.1),
    }
    settings = GateSettings(min_sessions=200, max_shrink=0.2, ranker_tolerance=0, parent_tolerance=0)
    return gates(settings, **{**given, **changed})


def evaluation(two_stage: float, *, blend: float, parent: float, questions: int = 200) -> dict[str, Any]:
    session = {"two_stage": {"ndcg_at_10": two_stage}, "blend": {"ndcg_at_10": blend}}
    return {"questions": questions, "session": session, "parent": {"ndcg_at_10": parent}}


def test_gates_hold_at_their_bounds() -> None:
    assert overridden(check(), force=False) == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"items": 79}, "items against the parent: 79, expected at least 80 (index.gates.max_shrink)"),
        ({"available": 0}, "available items: 0, expected at least 1 (index.catalogue.columns.available)"),
        ({"recall": 0.9499}, "recall@500: 0.9499, expected at least 0.95 (index.ann.recall_floor)"),
        ({"recall": float("nan")}, "recall@500: nan, expected at least 0.95 (index.ann.recall_floor)"),
        (
            {"evaluation": evaluation(0.09, blend=0.1, parent=0.09)},
            "NDCG@10 of the ranker: 0.09, expected at least 0.1 (index.gates.ranker_tolerance)",
        ),
        (
            {"evaluation": evaluation(0.1, blend=0.1, parent=0.11)},
            "NDCG@10 against the parent: 0.1, expected at least 0.11 (index.gates.parent_tolerance)",
        ),
        (
            {"evaluation": evaluation(float("nan"), blend=0.1, parent=0)},
            (
                "NDCG@10 of the ranker: nan, expected at least 0.1 (index.gates.ranker_tolerance); "
                "NDCG@10 against the parent: nan, expected at least 0 (index.gates.parent_tolerance)"
            ),
        ),
    ],
)
def test_a_gate_below_its_bound_is_named_and_force_says_so(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(GateFailed) as error:
        overridden(check(**changed), force=False)
    assert str(error.value) == f"the snapshot is not published: {says}"
    assert overridden(check(**changed), force=True) == says.split("; ")


def test_too_few_sessions_and_no_parent_make_no_gate() -> None:
    few = evaluation(0.0, blend=1.0, parent=1.0, questions=199)
    names = [gate.name for gate in check(evaluation=few, parent_items=None)]
    assert names == ["available items", "recall@500"]


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"catalogue": {"max_bad_share": 1.5}}, "catalogue.max_bad_share"),
        ({"catalogue": {"columns": {"titel": "name"}}}, "catalogue.columns.titel"),
        ({"catalogue": {"columns": {"title": ""}}}, "catalogue.columns.title"),
        ({"events": {"type_names": {"bought": "sale"}}}, "events.type_names.bought"),
        ({"popularity": {"half_life_days": 0}}, "popularity.half_life_days"),
        ({"query": {"decay": 0}}, "query.decay"),
        ({"keep": 0}, "keep"),
    ],
)
def test_a_setting_outside_its_range_is_named(given: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as error:
        IndexSettings.model_validate(given)
    assert ".".join(map(str, error.value.errors()[0]["loc"])) == where


def test_settings_come_as_text_from_the_environment() -> None:
    settings = IndexSettings.model_validate({"keep": "5", "ann": {"recall_floor": "0.9"}, "vector_store": "elsewhere"})
    assert (settings.keep, settings.ann.recall_floor, settings.vector_store) == (5, 0.9, Path("elsewhere"))
    assert settings.thread_count >= 1


def test_the_summary_is_a_table_for_people_and_json_for_programs() -> None:
    summary = BuildSummary(
        snapshot="20260601T120000Z-00000000",
        parent=None,
        items=2000,
        available=1999,
        distinct_texts=1500,
        encoded=30,
        reused=1470,
        catalogue_rows=2001,
        catalogue_bad=1,
        event_rows=10,
        event_bad=0,
        event_repeated=1,
        event_impressions=0,
        event_later=2,
        events=7,
        sessions=3,
        quarantined={"catalogue price is negative": 1},
        quarantine_file="/data/[out]/quarantine.jsonl",
        popularity_lists=4,
        index={"kind": "flat", "nprobe": 0, "recall_at_500": 1.0},
        ranker={"id": "blend-order-1"},
        learning={"why": "0 sessions with two items"},
        taken_over=False,
        evaluation={"questions": 0, "why": "no session"},
        gates=[],
        overridden=["recall@500: 0.9, expected at least 0.95 (index.ann.recall_floor)"],
        seconds={"catalogue": 1.25, "publish": 0.5},
    )
    assert json.loads(json.dumps(summary.as_dict(), allow_nan=False))["total_seconds"] == 1.75
    console = Console(file=io.StringIO(), width=200)
    console.print(table_of(summary))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for part in (
        "2,000 (1,999 available), 1,500 distinct texts",
        "30 texts, 1,470 reused",
        "7 in 3 sessions; left out: 1 repeated, 2 after --until",
        "1 x catalogue price is negative",
        "/data/[out]/quarantine.jsonl",
        "blend-order-1: nothing was learned: 0 sessions with two items",
        "FORCED",
    ):
        assert part in text
