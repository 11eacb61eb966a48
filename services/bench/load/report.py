"""What was measured, for a person: where, a table, a picture."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from indexer.contract.plots import Line, lines, sheet
from services.bench.load.measure import CACHED, Figures

_LIBRARIES = ("feedline", "grpcio", "uvloop", "numpy")
_QUIET_CORES = 0.1
_CPUINFO = Path("/proc/cpuinfo")


def head(command: str) -> dict[str, Any]:
    """The machine, the versions, and how busy the machine was before; `command`: what was called."""
    models = [line.partition(":")[2].strip() for line in _CPUINFO.read_text().splitlines() if "model name" in line]
    return {
        "command": command,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {models[0] if models else 'unknown CPU'}",
        "system": f"{platform.system()} {platform.release()}",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def notes(report: dict[str, Any]) -> list[str]:
    """Lines under the title; one with a leading "!" is a warning."""
    items = f"{report['items']:,}{' synthetic' if report['synthetic'] else ''} items"
    found = [f"{report['machine']} · {items} · budget {report['budget_ms']:g} ms"]
    if plateau := report.get("plateau"):
        reached = "" if plateau["reached"] else " at least: the sweep ended before more load brought no more"
        found.append(
            f"plateau: {plateau['goodput_qps']:,.1f} complete answers a second{reached},"
            f" offered {plateau['offered_qps']:,.1f}"
        )
    if service := report["steps"][-1]["service"]:
        resident, own = service["rss"] / 2**20, service["rss_anon"] / 2**20
        found.append(f"the service at the end: {resident:,.0f} MiB resident, {own:,.0f} MiB of it its own")
    if report["mix"]["histories"] and not report["users_with_a_history"]:
        found.append("no user with a history is known: the mix went without")
    others = max((step["others_cores"] or 0.0 for step in report["steps"]), default=0.0)
    if others > _QUIET_CORES:
        found.append(f"!the machine was not quiet: other processes used up to {others:.1f} cores meanwhile")
    if bound := [step for step in report["steps"] if step["generator_bound"]]:
        worst = max(bound, key=lambda step: float(step["generator"]["lag_p99_ms"] or 0.0))
        found.append(
            f"!the generator was itself the bottleneck in {len(bound)} of {len(report['steps'])} steps;"
            f" at {worst['qps']:g} requests/s: {'; '.join(worst['generator_bound_by'])}"
        )
    return found


def table(report: dict[str, Any]) -> Table:
    """A line for each step; the rest stands in the JSON. "own CPU": the generator's, of a core."""
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in (
        "offered/s", "good/s", "non-OK", "fallback", "hits", "p50 ms", "p99 ms", "CPU ms", "own CPU"
    ):  # fmt: skip
        made.add_column(name, justify="right", no_wrap=True)
    for step in report["steps"]:
        latency, service = step["latency_ms"], step["service"] or {}
        hits = sum(step["cache_share"].get(name) or 0.0 for name in CACHED)
        made.add_row(
            f"{'spike ' if step['spike'] else ''}{step['offered_qps']:,.1f}",
            f"{step['goodput_qps']:,.1f}",
            f"{step['non_ok']:,}",
            _percent(step["fallback_share"]),
            _percent(hits if step["answered"] else None),
            *(_number(latency[name], 1) for name in ("p50", "p99")),
            _number(service.get("cpu_ms_per_answer"), 2),
            "BOUND" if step["generator_bound"] else _percent(step["generator"]["busy"]),
        )
    return made


def printed(report: dict[str, Any]) -> Group:
    """The notes, and the table below them."""
    said = [Text(line.removeprefix("!"), style="bold red" if line.startswith("!") else "") for line in notes(report)]
    return Group(*said, "", table(report))


def picture(report: dict[str, Any], path: Path) -> None:
    """Writes an SVG that opens by itself: against the offered load where there are several rates, and over time."""
    path.write_text(sheet("Feedline under load", notes(report), list(_plots(report))), encoding="utf-8")


def _plots(report: dict[str, Any]) -> Iterator[str]:
    steps = sorted((step for step in report["steps"] if not step["spike"]), key=lambda one: float(one["offered_qps"]))
    if len({step["qps"] for step in steps}) > 1:
        yield from _against_load(steps)
    if windows := report.get("over_time"):
        yield from _over_time(windows)


def _against_load(steps: list[Figures]) -> Iterator[str]:
    load = "offered, requests/s"
    offered = [(step["offered_qps"], step["offered_qps"]) for step in steps]
    bound = [(step["offered_qps"], step["goodput_qps"]) for step in steps if step["generator_bound"]]
    shown = [
        Line("offered", offered, "mark"),
        Line("complete in budget", _points(steps, "offered_qps", "goodput_qps")),
        Line("of these cached", _points(steps, "offered_qps", "goodput_cached_qps"), "second"),
    ]
    yield lines([*shown, *_some(Line("generator-bound", bound, "bad", joined=False))], "Goodput", load, "requests/s")
    shares = [
        Line("fallback", [(x, 100 * y) for x, y in _points(steps, "offered_qps", "fallback_share")], "second"),
        Line("non-OK", [(step["offered_qps"], 100 * step["non_ok"] / max(1, step["sent"])) for step in steps], "bad"),
    ]
    yield from _drawn(shares, "Fallback and errors", load, "%")
    latency = [
        Line(name, [(step["offered_qps"], step["latency_ms"][key]) for step in steps if step["answered"]], kind)
        for name, key, kind in (("p50", "p50", "mark"), ("p95", "p95", "second"), ("p99", "p99", "ours"))
    ]
    yield from _drawn(latency, "Latency from the intended send to the last byte", load, "ms")


def _over_time(windows: list[Figures]) -> Iterator[str]:
    time = "seconds from the start"
    rates = [
        Line("offered", _points(windows, "from_s", "offered_qps"), "mark"),
        Line("complete in budget", _points(windows, "from_s", "goodput_qps")),
    ]
    yield lines(rates, "Rates over time", time, "requests/s", dotted=False)
    latency = [
        Line("p50", _points(windows, "from_s", "p50_ms"), "mark"),
        Line("p99", _points(windows, "from_s", "p99_ms")),
    ]
    yield from _drawn(latency, "Latency over time", time, "ms", dotted=False)
    fallback = [Line("fallback", [(x, 100 * y) for x, y in _points(windows, "from_s", "fallback_share")], "second")]
    yield from _drawn(fallback, "Fallback over time", time, "%", dotted=False)


def _drawn(series: list[Line], title: str, x_unit: str, y_unit: str, *, dotted: bool = True) -> Iterator[str]:
    """The plot, where there is anything to show."""
    if shown := [each for line in series for each in _some(line)]:
        yield lines(shown, title, x_unit, y_unit, dotted=dotted)


def _some(line: Line) -> list[Line]:
    return [line] if line.points else []


def _points(rows: list[Figures], x: str, y: str) -> list[tuple[float, float]]:
    return [(row[x], row[y]) for row in rows if row[y] is not None]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
