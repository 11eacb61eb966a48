from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from indexer.contract.plots import Point, Spot, bars, dots, plane
from indexer.report_page import page


def row(value: float) -> dict[str, Any]:
    interval = {"mean": value, "low": value - 0.01, "high": value + 0.01}
    return {"ndcg_at_10": value, "recall_at_50": 0.3, "recall_at_500": 0.6, "interval": interval}


def rehearsed(value: float) -> dict[str, Any]:
    """Measured on a window of its own."""
    window = {"start": "2026-03-01T00:00:00+00:00", "stop": "2026-04-01T00:00:00+00:00"}
    return {**row(value), "over_blend": {"mean": 0.2, "low": 0.1, "high": 0.3}, "window": window}


LOSS = {"mean": 0.001, "low": -0.001, "high": 0.003}
REPORT: dict[str, Any] = {
    "snapshot": "20261201T000000Z-deadbeef",
    "items": 1200,
    "gates": ["items: 1,200 <of> 1,200"],
    "overridden": [],
    "seconds": {"towers": 3.5},
    "evaluation": {
        "session": {
            **{name: row(0.2) for name in ("two_stage", "towers", "neighbours", "history", "blend")},
            "teacher": rehearsed(0.3),
            "student_labels": rehearsed(0.29),
        },
        "kept_of_the_teachers_lift": {"student_labels": 0.9},
        "slate": {
            "mmr_0.9": {
                "ndcg_at_10": 0.19,
                "difference": {"mean": -0.01, "low": -0.02, "high": -0.005},
                "lift": {"mean": -0.05, "low": -0.1, "high": -0.025},
                "others_in_10": 1.5,
            }
        },
        "lifts": {"session": {"towers": {"lift": {"mean": 0.1, "low": 0.05, "high": 0.2}}}},
        "questions": {"session": 3000},
        "degraded_pages": 0,
        "served_vs_offline_max_difference": 1e-6,
    },
    "learning": {
        "validation": {"trees": 0.27, "student_labels": 0.28},
        "blend": {"shared": {"ann": 0.5, "offset": 10.0}},
        "ranker": {"precision": "int8"},
        "compression": [
            {"name": "fp32", "p50_ms": 0.11, "ndcg_at_10": 0.28, "loss": {"mean": 0.0, "low": 0.0, "high": 0.0}},
            {"name": "int8", "p50_ms": 0.08, "ndcg_at_10": 0.279, "loss": LOSS},
            {"name": "bad", "p50_ms": None, "ndcg_at_10": None, "loss": {"mean": None, "low": None, "high": None}},
        ],
    },
}
HEADINGS = {
    "Session: the first items are known",
    "What is left of the teacher's lift",
    "Recall by source",
    "Rules of the slate",
    "Quality against latency",
    "Teachers and students",
    "Weights of the blend",
    "Gates before publishing",
    "Seconds",
}


class Read(HTMLParser):
    """Tags with their attributes, and headings; fails where tags do not close in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.headings: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "h2":
            self.headings.add(data)


def test_the_page_shows_every_part_and_needs_nothing_from_elsewhere() -> None:
    text = page(REPORT)
    read = Read(text)
    assert read.headings == HEADINGS
    assert {"script", "link", "img", "iframe"} & {tag for tag, _ in read.tags} == set()
    names = {name for _, attributes in read.tags for name in attributes}
    assert not names & {"style", "href", "src"}
    assert not [name for name in names if name.startswith("on")]
    policy = next(given["content"] for tag, given in read.tags if given.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "1,200 &lt;of&gt; 1,200" in text


@pytest.mark.parametrize("part", ["evaluation", "learning", "gates", "seconds"])
def test_what_the_report_lacks_is_left_out(part: str) -> None:
    left = {name: value for name, value in REPORT.items() if name != part}
    assert Read(page(left)).headings < HEADINGS


def test_what_was_measured_on_another_window_stands_apart_and_says_so() -> None:
    text = page(REPORT)
    apart = text[text.index("What is left of the teacher's lift") :]
    assert "2026-03-01 to 2026-04-01" in apart
    before = text[: len(text) - len(apart)]
    assert "student_labels" not in before
    assert "+20.0% (+10.0% to +30.0%)" in apart
    assert "90.0%" in apart


def test_an_empty_report_is_a_page_without_a_plot() -> None:
    read = Read(page({}))
    assert read.headings == set()
    assert "svg" not in {tag for tag, _ in read.tags}


def test_degraded_pages_are_said_loudly() -> None:
    evaluation = {**REPORT["evaluation"], "degraded_pages": 7, "pages": 100}
    assert "7 of 100 pages were degraded" in page({**REPORT, "evaluation": evaluation})


def test_plots_stay_within_their_frame_whatever_the_values() -> None:
    drawn = [
        dots([Point("a", 0.0, 0.0, 0.0), Point("b", 1e-6, 0.0, 2e-6)], "t", "u"),
        dots([Point("same", 0.5, 0.5, 0.5)], "t", "u"),
        bars([("a", [0.0, 0.0])], ["x", "y"], "t", "u"),
        plane([Spot("a", 0.0, 0.3, 0.3, 0.3), Spot("b", 5.0, 0.3, 0.29, 0.31)], "t", "x", "y"),
    ]
    for svg in drawn:
        found = re.search(r'viewBox="0 0 (\d+) (\d+)"', svg)
        assert found is not None
        width, height = map(float, found.groups())
        for name, most in (("x", width), ("cx", width), ("x1", width), ("x2", width), ("y", height), ("cy", height)):
            for value in re.findall(rf' {name}="([^"]+)"', svg):
                assert -1 <= float(value) <= most + 1
