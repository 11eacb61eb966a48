"""What a build did, for a person and for a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """Counts are rows unless said otherwise; `seconds` by stage; `overridden` names the gates that force let pass."""

    snapshot: str
    parent: str | None
    items: int
    available: int
    distinct_texts: int
    encoded: int
    reused: int
    catalogue_rows: int
    catalogue_bad: int
    event_rows: int
    event_bad: int
    event_repeated: int
    event_impressions: int
    event_later: int
    events: int
    sessions: int
    quarantined: dict[str, int]
    quarantine_file: str | None
    popularity_lists: int
    index: dict[str, Any]
    ranker: dict[str, Any]
    learning: dict[str, Any]
    taken_over: bool
    evaluation: dict[str, Any]
    gates: list[str]
    overridden: list[str]
    seconds: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        """For --json: everything, and the seconds of all stages together."""
        return {**asdict(self), "total_seconds": round(sum(self.seconds.values()), 3)}


def table_of(summary: BuildSummary) -> Table:
    """The summary as a table of two columns."""
    table = Table("", "", title=f"Snapshot {summary.snapshot}", show_header=False, title_justify="left")
    for name, value in _lines(summary):
        table.add_row(Text(name), Text(value))
    return table


def _lines(summary: BuildSummary) -> Iterator[tuple[str, str]]:
    yield "parent", summary.parent or "none"
    yield "items", f"{summary.items:,} ({summary.available:,} available), {summary.distinct_texts:,} distinct texts"
    yield "encoded", f"{summary.encoded:,} texts, {summary.reused:,} reused"
    yield "events", _events(summary)
    yield "quarantined", _quarantined(summary)
    yield "index", "{kind}, nprobe {nprobe}, recall@500 {recall_at_500:.4f}".format(**summary.index)
    yield "popularity", f"{summary.popularity_lists:,} lists"
    yield "ranker", _ranker(summary)
    session = summary.evaluation.get("session", {})
    for name in ("two_stage", "teacher", "blend", "towers", "neighbours", "history", "popularity"):
        if name in session:
            interval = session[name]["interval"]
            yield f"NDCG@10 {name}", f"{interval['mean']:.4f} ({interval['low']:.4f} to {interval['high']:.4f})"
    if "why" in summary.evaluation:
        yield "evaluation", f"none: {summary.evaluation['why']}"
    for gate in summary.overridden:
        yield "FORCED", gate
    yield "seconds", ", ".join(f"{name} {seconds:.1f}" for name, seconds in summary.seconds.items())


def _events(summary: BuildSummary) -> str:
    left_out = [
        f"{number:,} {what}"
        for number, what in (
            (summary.event_repeated, "repeated"),
            (summary.event_impressions, "impressions"),
            (summary.event_later, "after --until"),
        )
        if number
    ]
    return f"{summary.events:,} in {summary.sessions:,} sessions" + (
        f"; left out: {', '.join(left_out)}" if left_out else ""
    )


def _quarantined(summary: BuildSummary) -> str:
    if not summary.quarantined:
        return "no row"
    return "\n".join(
        [*(f"{number:,} x {what}" for what, number in summary.quarantined.items()), f"in {summary.quarantine_file}"]
    )


def _ranker(summary: BuildSummary) -> str:
    name, how = summary.ranker["id"], summary.learning
    if "why" in how:
        return f"{name}: nothing was learned: {how['why']}"
    made = f"{name}, {how['ranker']['student']}, learned from {how['lists']:,} questions"
    return f"{made}, taken over from the parent" if summary.taken_over else made
