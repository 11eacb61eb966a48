"""What a trial found, for a person: a table, and the report of the snapshot with its evaluation as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from indexer.contract import manifest as names
from indexer.contract.publish import write_json
from indexer.contract.snapshot import Snapshot
from indexer.learn.evaluation import lines, measured_here
from indexer.report_page import write_page

_SECTIONS = ("session", "next_basket", "novel", "cold")


def tables(document: Mapping[str, Any]) -> Group:
    """The sections one below the other, then how the service answered."""
    parts: list[Table | Text] = []
    for section in _SECTIONS:
        if not document.get(section):
            continue
        heading, *rows = lines(document, section)
        table = Table(*heading, title=f"{section}: {document['questions'][section]:,} questions", title_justify="left")
        for cells in rows:
            table.add_row(*map(Text, cells))
        parts.append(table)
    parts += [*_rehearsed(document), *_slate(document)]
    alike = document["served_vs_offline"]
    parts.append(
        Text(
            f"snapshot {document['snapshot']}, retrieval {document['mode']}, {document['pages']:,} pages\n"
            f"served against offline: {alike['questions']:,} questions, {alike['items']:,} scores, "
            f"largest difference {alike['max']:.2g}"
        )
    )
    if document["degraded_pages"]:
        parts.append(Text(degraded(document), style="bold red"))
    return Group(*parts)


def _rehearsed(document: Mapping[str, Any]) -> list[Table]:
    """Teacher and students, on the window of the build."""
    session, kept = document["session"], document["kept_of_the_teachers_lift"]
    rows = {name: row for name, row in session.items() if name not in measured_here(session)}
    if not rows:
        return []
    window = next(iter(rows.values()))["window"]
    title = f"rehearsed by the build on {window['start']} to {window['stop']}"
    table = Table("", "N@10", "over the blend's order", "kept of the teacher's lift", title=title, title_justify="left")
    for name, row in rows.items():
        share = f"{kept[name]:.1%}" if name in kept else ""
        table.add_row(name, f"{row['ndcg_at_10']:.4f}", _spread(row.get("over_blend")), share)
    return [table]


def _slate(document: Mapping[str, Any]) -> list[Table]:
    title = "rules of the slate, each by itself, on what was served"
    table = Table("", "N@10", "change", "others in the first 10", title=title, title_justify="left")
    for name, row in document["slate"].items():
        table.add_row(name, f"{row['ndcg_at_10']:.4f}", _spread(row["lift"], 2), f"{row['others_in_10']:.2f}")
    return [table] if document["slate"] else []


def _spread(interval: Mapping[str, float] | None, digits: int = 1) -> str:
    if not interval:
        return ""
    mean, low, high = (f"{interval[name]:+.{digits}%}" for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def degraded(document: Mapping[str, Any]) -> str:
    """One line that says that the figures are not those of the whole pipeline, and why."""
    why = ", ".join(f"{reason} {count:,}" for reason, count in document["reasons"].items()) or "no reason given"
    return (
        f"{document['degraded_pages']:,} of {document['pages']:,} pages were DEGRADED ({why}): "
        "these figures are not those of the whole pipeline"
    )


def save(snapshot: Snapshot, document: Mapping[str, Any], folder: Path) -> None:
    """report.json and report.html in `folder`: the report of the build, with this evaluation in place of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    report = json.loads(snapshot.path(names.REPORT).read_bytes()) if snapshot.has(names.REPORT) else {}
    report = {"snapshot": snapshot.id, **report, "evaluation": document}
    write_json(folder / names.REPORT, report)
    write_page(report, folder / names.REPORT_PAGE)
