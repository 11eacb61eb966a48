"""report.html: what stands in report.json, for a person, with plots. One file: no script, nothing from elsewhere.

What the report lacks is left out. The page carries its own policy: nothing but its one style may take effect.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from indexer.contract.plots import Point, Spot, bars, dots, plane

Report = Mapping[str, Any]
_OURS = "two_stage"
_SECTIONS = {
    "session": "Session: the first items are known",
    "next_basket": "Next basket: nothing of it is known",
    "novel": "Discovery: items that the user never bought before",
    "cold": "Cold items: without any event before the window",
}
_MEASURES = {
    "ndcg_at_10": "NDCG@10",
    "ndcg_at_50": "NDCG@50",
    "recall_at_50": "recall@50",
    "recall_at_500": "recall@500",
    "mrr": "MRR",
    "coverage_at_10": "coverage@10",
}
_VARIANT = {
    "name": "",
    "size": "bytes",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "batch_p50_ms": "p50 of 32",
    "batch_p99_ms": "p99 of 32",
    "throughput": "requests / s",
    "dollars_per_million": "$ per million",
    "ndcg_at_10": "NDCG@10",
    "loss": "loss",
    "fault": "fault",
}
_POINT = ("kind", "nprobe", "refine")
_WIDER = {"nprobe": "lists", "refine": "scored exactly, times 500", "recall_at_500": "recall@500"}
_TRIED = {
    "kind": "",
    **_WIDER,
    "ms": "ms, counted",
    "p99_ms": "p99, counted",
    "measured_p50_ms": "p50, measured",
    "measured_p99_ms": "p99, measured",
    "bytes": "bytes",
}
_SOURCES = ("towers", "neighbours", "history", "blend")
_STYLE = """
:root { color-scheme: light dark; --ground: #fdfdfc; --ink: #1d2125; --soft: #5d666f; --line: #dfe3e6; --ours: #0b6e4f;
  --mark: #7a8590; --second: #7fb8a2; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --ink: #e4e7ea; --soft: #9aa4ad; --line: #2c3238;
  --ours: #4cc79c; --mark: #8b96a1; --second: #2f7d62; --bad: #ff8a80; } }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 70rem; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; } h2 { font-size: 1.1rem; margin: 2.5rem 0 .5rem; }
p { max-width: 46rem; margin: .25rem 0 .75rem; } .soft, caption { color: var(--soft); }
.bad { color: var(--bad); font-weight: 600; }
svg { display: block; width: 100%; max-width: 760px; height: auto; }
svg text { fill: var(--ink); font-size: 12.5px; } svg .value { fill: var(--soft); font-size: 11.5px; }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--line); } svg line.mark { stroke: var(--mark); stroke-width: 2; }
svg line.ours { stroke: var(--ours); stroke-width: 2.5; } svg circle.mark, svg rect.mark { fill: var(--mark); }
svg circle.ours, svg rect.ours { fill: var(--ours); } svg rect.second { fill: var(--second); }
.wide { overflow-x: auto; } svg + .wide { margin-top: .75rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13.5px; }
th, td { padding: .25rem .75rem .25rem 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } th { font-weight: 600; color: var(--soft); }
"""


def write_page(report: Report, path: Path) -> None:
    """Writes the page of a report: that of a build, of an evaluation, or of both."""
    path.write_text(page(report), encoding="utf-8")


def page(report: Report) -> str:
    """The page as HTML."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    title = f"Snapshot {report.get('snapshot', 'without a name')}"
    body = "\n".join(part for make in _PARTS for part in make(report))
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def _summary(report: Report) -> Iterator[str]:
    evaluation = report.get("evaluation", {})
    facts = [
        f"{report[name]:,} {word}"
        for name, word in (("items", "items"), ("events", "events"), ("sessions", "sessions"))
        if isinstance(report.get(name), int)
    ]
    windows = evaluation.get("windows", {})
    start, stop = windows.get("start", windows.get("evaluate")), windows.get("stop", windows.get("end"))
    if start and stop:
        facts.append(f"evaluated on {start[:10]} to {stop[:10]}")
    if "mode" in evaluation:
        facts.append(f"retrieval {evaluation['mode']}")
    if facts:
        yield f'<p class="soft">{escape(" · ".join(facts))}</p>'
    if evaluation.get("degraded_pages"):
        bad = f"{evaluation['degraded_pages']:,} of {evaluation['pages']:,} pages were degraded"
        yield f'<p class="bad">{bad}: these figures are not those of the whole pipeline.</p>'
    if "served_vs_offline_max_difference" in evaluation:
        largest = evaluation["served_vs_offline_max_difference"]
        yield f"<p>Largest difference between a served score and the same computed offline: {largest:.1g}.</p>"
    if evaluation.get("why"):
        yield f"<p>No evaluation: {escape(str(evaluation['why']))}</p>"


def _gates(report: Report) -> Iterator[str]:
    gates = report.get("gates")
    if not gates:
        return
    overridden = set(report.get("overridden", ()))
    rows = [[str(gate), "overridden" if gate in overridden else "holds"] for gate in gates]
    yield f"<h2>Gates before publishing</h2>{_table(['gate', ''], rows)}"


def _rankings(report: Report) -> Iterator[str]:
    evaluation = report.get("evaluation", {})
    for section, title in _SECTIONS.items():
        rows: Report = evaluation.get(section) or {}
        points = [
            Point(name, row["ndcg_at_10"], row["interval"]["low"], row["interval"]["high"], name == _OURS)
            for name, row in rows.items()
            if "interval" in row and "window" not in row
        ]
        if not points:
            continue
        points.sort(key=lambda each: -each.mean)
        counts = evaluation.get("questions", {})
        count = counts.get(section) if isinstance(counts, Mapping) else counts
        yield f"<h2>{title}</h2><p class='soft'>NDCG@10 with 95 % intervals over users{_asked(count)}.</p>"
        if any(each.high > 0 for each in points):
            yield dots(points, f"NDCG@10, {title}", "NDCG@10")
        here = {name: row for name, row in rows.items() if "window" not in row}
        yield _figures(here, evaluation.get("lifts", {}).get(section, {}))


def _kept(report: Report) -> Iterator[str]:
    """How much of the teacher's lift the students keep; from the window of the build when a trial has its own."""
    evaluation = report.get("evaluation", {})
    kept: Report = evaluation.get("kept_of_the_teachers_lift") or {}
    session: Report = evaluation.get("session") or {}
    if not kept:
        return
    window = session.get("teacher", {}).get("window")
    where = f"measured by the build on {window['start'][:10]} to {window['stop'][:10]}" if window else "as above"
    yield f"<h2>What is left of the teacher's lift</h2><p class='soft'>Over the order of the blend, {where}.</p>"
    shares = {name: f"{share:.1%}" for name, share in kept.items()}
    rows = [
        [name, _cell(row.get("interval")), _change(row.get("over_blend"), 1), shares.get(name, "")]
        for name in ("teacher", *kept)
        if (row := session.get(name))
    ]
    yield _table(["", "NDCG@10", "over the blend", "kept of the lift"], rows)


def _slate(report: Report) -> Iterator[str]:
    costs: Report = report.get("evaluation", {}).get("slate") or {}
    if not costs:
        return
    yield "<h2>Rules of the slate</h2><p class='soft'>What each, by itself, makes of the page that was served.</p>"
    rows = [
        [name, _cell(row["ndcg_at_10"]), _change(row["lift"], 2), f"{row['others_in_10']:.2f}"]
        for name, row in costs.items()
    ]
    yield _table(["", "NDCG@10", "change", "others in the first 10"], rows)


def _recall(report: Report) -> Iterator[str]:
    session = report.get("evaluation", {}).get("session", {})
    groups = [
        (name, [session[name]["recall_at_50"], session[name]["recall_at_500"]])
        for name in _SOURCES
        if "recall_at_500" in session.get(name, {})
    ]
    if groups:
        yield "<h2>Recall by source</h2><p class='soft'>Each source by itself, and their blend before the ranker.</p>"
        yield bars(groups, ["recall@50", "recall@500"], "Recall by source", "share of the targets found")


def _compression(report: Report) -> Iterator[str]:
    rows: Sequence[Report] = report.get("learning", {}).get("compression") or ()
    if not rows:
        return
    published = report.get("learning", {}).get("ranker", {}).get("precision")
    yield "<h2>Quality against latency</h2><p class='soft'>The published precision is the cheapest above the floor.</p>"
    spots = [
        Spot(row["name"], row["p50_ms"], _number(row["ndcg_at_10"]), *_bounds(row), row["name"] == published)
        for row in rows
        if row.get("p50_ms") is not None and row.get("ndcg_at_10") is not None
    ]
    if spots:
        yield plane(spots, "Quality against latency", "p50 of one request, ms", "NDCG@10")
    columns = [name for name in _VARIANT if any(row.get(name) not in (None, "") for row in rows)]
    yield _table([_VARIANT[name] for name in columns], [[_variant(name, row) for name in columns] for row in rows])


def _variant(column: str, row: Report) -> str:
    value = row.get(column)
    if column == "loss":
        return _change(value, 2) if value and value["mean"] is not None else ""
    return f"{value:,.0f}" if column == "throughput" and value is not None else _cell(value)


def _learning(report: Report) -> Iterator[str]:
    learning = report.get("learning", {})
    tried: Report = learning.get("validation") or {**learning.get("teachers", {}), **learning.get("students", {})}
    points = [
        Point(name, float(value), float(value), float(value), name.startswith("student"))
        for name, value in tried.items()
        if isinstance(value, int | float)
    ]
    if points:
        yield "<h2>Teachers and students</h2><p class='soft'>NDCG@10 on validation, where they were chosen.</p>"
        yield dots(sorted(points, key=lambda each: -each.mean), "Teachers and students", "NDCG@10 on validation")
    blend: Report = learning.get("blend") or {}
    if blend and all(isinstance(weights, Mapping) for weights in blend.values()):
        columns = list(next(iter(blend.values())))
        rows = [[mode, *(_cell(weights.get(name)) for name in columns)] for mode, weights in blend.items()]
        yield f"<h2>Weights of the blend</h2>{_table(['retrieval', *columns], rows)}"
    if learning.get("why"):
        yield f"<p>Nothing was learned: {escape(str(learning['why']))}</p>"


def _index(report: Report) -> Iterator[str]:
    index: Report = report.get("index", {})
    table = index.get("table") or []
    if not table:
        return
    yield (
        "<h2>The index</h2><p class='soft'>recall@500 of held-out session vectors against exact search, by the cost of"
        " one query: counted by the work that it takes, so that one catalogue gives one choice.</p>"
    )
    chosen = [index.get(name) for name in _POINT]
    yield plane(
        [_tried(row, chosen) for row in sorted(table, key=lambda row: [row[name] for name in _POINT] == chosen)],
        "Recall against latency",
        "ms of one query, counted",
        "recall@500",
    )
    rows = index.get("timed") or table
    columns = [name for name in _TRIED if any(name in row for row in rows)]
    yield _table([_TRIED[name] for name in columns], [[_cell(row.get(name)) for name in columns] for row in rows])
    if index.get("filtered"):
        rows = [[f"{row['share']:.0%}", *(_cell(row[name]) for name in _WIDER)] for row in index["filtered"]]
        yield f"<h3>Where filters leave a part</h3>{_table(['items left', *_WIDER.values()], rows)}"


def _tried(row: Report, chosen: Sequence[object]) -> Spot:
    ours = [row[name] for name in _POINT] == chosen
    label = f"{row['kind']}, nprobe {row['nprobe']}" if ours else ""
    return Spot(label, row["ms"], row["recall_at_500"], row["recall_at_500"], row["recall_at_500"], ours)


def _seconds(report: Report) -> Iterator[str]:
    seconds = report.get("seconds")
    if seconds:
        rows = [[name, f"{value:,.1f}"] for name, value in seconds.items()]
        yield f"<h2>Seconds</h2>{_table(['stage', 'seconds'], rows)}"


_PARTS: Sequence[Callable[[Report], Iterator[str]]] = (
    _summary, _rankings, _kept, _recall, _slate, _compression, _learning, _index, _gates, _seconds,
)  # fmt: skip


def _figures(rows: Report, lifts: Report) -> str:
    columns = [name for name in _MEASURES if any(name in row for row in rows.values())]
    lines = []
    best = ("ndcg_at_10", "recall_at_500")
    for name, row in sorted(rows.items(), key=lambda one: [-one[1].get(measure, 0.0) for measure in best]):
        lift = lifts.get(name, {}).get("lift")
        lines.append([name, *(_cell(row.get(column)) for column in columns), *([_change(lift, 1)] if lifts else [])])
    return _table(["", *(_MEASURES[name] for name in columns), *([f"{_OURS} over it"] if lifts else [])], lines)


def _asked(count: object) -> str:
    return f", {count:,} questions" if isinstance(count, int) else ""


def _bounds(row: Report) -> tuple[float, float]:
    """Quality's interval from that of the loss, when the row has one: a share of the first row's quality."""
    value, loss = _number(row["ndcg_at_10"]), row.get("loss")
    if not isinstance(loss, Mapping) or loss.get("low") is None:
        return value, value
    base = value / (1 - _number(loss["mean"]))
    return base * (1 - _number(loss["high"])), base * (1 - _number(loss["low"]))


def _change(interval: Report | None, digits: int) -> str:
    if not interval:
        return ""
    mean, low, high = (f"{interval[name]:+.{digits}%}" for name in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _number(value: Any) -> float:
    return float(value)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping) and {"mean", "low", "high"} <= set(value):
        return f"{value['mean']:.4f} ({value['low']:.4f} to {value['high']:.4f})" if value["mean"] is not None else ""
    return f"{value:,.4f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
