"""What an overload came to, for a person: where, tables, a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from indexer.contract.plots import Line, lines, sheet
from services.bench.overload.law import Law

Row = dict[str, Any]
_QUIET_CORES = 0.1
_GIVEN = 0.97
_OVERLOADED = 0.1
_PURE = 0.95
_CURVE = 80
_LOAD = "offered, times the provisioned peak"
_COLUMNS = (
    "load", "offered/s", "fallback", "law", "simple law", "p50 ms", "p99 ms", "fallback p99", "good/s", "non-OK",
    "hits", "cores",
)  # fmt: skip


def notes(report: dict[str, Any]) -> list[str]:
    """Lines under the title; one with a leading "!" is a warning."""
    items = f"{report['items']:,}{' synthetic' if report['synthetic'] else ''} items"
    cold, warm, echo = report["costs"]["cold"], report["costs"]["warm"], report["echo"]
    plateau, peak = report["plateau_qps"], report["peak_qps"]
    scored = f"{cold['scored']['cpu_ms']:.2f} ms ({warm['scored']['cpu_ms']:.2f} with a cache)"
    hit, fallback = f"{warm['hit']['cpu_ms']:.3f} ms", f"{cold['fallback']['cpu_ms']:.3f} ms"
    full, most = report["full_load_qps"], report["most_load_qps"]
    found = [
        f"{report['machine']} · {items} · the service on {report['cores']} of the cores",
        f"plateau {plateau:,.1f} complete answers a second; provisioned peak, 75 % of it: {peak:,.1f}",
        f"CPU of an answer: scored {scored}, hit {hit}, fallback {fallback}",
        f"by these costs somebody falls back from {full:,.0f}/s on; past {most:,.0f} even fallbacks are too many",
        f"a bare grpc.aio echo {echo['cpu_ms']:.3f} ms: a fallback costs {echo['fallback_times_echo']:.2f} times that",
        _settled("fallback below 1 % after ten times the peak for 3 s", report["spike"]),
        _settled("normal after the cache was lost at twice the peak, under retrying clients", report["flush"]),
    ]
    return [*found, *_warnings(report)]


def _settled(what: str, scene: dict[str, Any]) -> str:
    seconds = scene["seconds_until_settled"]
    return f"!{what}: not within the run" if seconds is None else f"{what}: {seconds:.1f} s"


def _warnings(report: dict[str, Any]) -> Iterator[str]:
    rows = _rows(report)
    priced = {f"{name}, {kind}": told for name in ("cold", "warm") for kind, told in report["costs"][name].items()}
    if mixed := [f"{name} {told['purity']:.0%}" for name, told in priced.items() if told["purity"] < _PURE]:
        yield f"!runs that price one kind of answer had others in them; of the kind: {'; '.join(mixed)}"
    if not report["plateau"]["reached"]:
        yield "!the plateau may lie higher: the sweep ended before more load brought no more"
    if (others := max((row["others_cores"] or 0.0 for row in rows), default=0.0)) > _QUIET_CORES:
        yield f"!the machine was not quiet: other processes used up to {others:.1f} cores meanwhile"
    full = [row for row in rows if (row["fallback_share"] or 0.0) > _OVERLOADED and row["service_cores"] is not None]
    if full and (least := min(row["service_cores"] for row in full)) < _GIVEN * report["cores"]:
        yield f"!overloaded, the service used {least:.2f} cores only: the laws expect {report['cores']}"
    if bound := [row for row in rows if row["generator_bound"]]:
        yield f"!the generator was itself the bottleneck in {len(bound)} of {len(rows)} steps (bound, below)"


def printed(report: dict[str, Any]) -> Group:
    """The notes, and the tables below them."""
    said = [Text(line.removeprefix("!"), style="bold red" if line.startswith("!") else "") for line in notes(report)]
    tables = (
        ("Without a cache", report["steps"]),
        ("With a warm cache", report["warm_steps"]),
        ("Up and down again", report["step"]["steps"]),
        ("A spike", report["spike"]["steps"]),
        ("The cache is lost at 2x, clients retry", report["flush"]["steps"]),
    )
    return Group(*said, *(part for title, rows in tables for part in ("", _table(title, rows))))


def _table(title: str, rows: Sequence[Row]) -> Table:
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in _COLUMNS:
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(
            f"{row['load_times_peak']:g}x{' bound' if row['generator_bound'] else ''}",
            f"{row['offered_qps']:,.0f}",
            *(_percent(row[name]) for name in ("fallback_share", "law_fallback_share", "simple_law_fallback_share")),
            *(_number(row[name], 1) for name in ("p50_ms", "p99_ms", "fallback_p99_ms", "goodput_qps")),
            f"{row['non_ok']:,}",
            _percent(row["cache_share"]),
            _number(row["service_cores"], 2),
        )
    return made


def picture(report: dict[str, Any]) -> str:
    """An SVG that opens by itself: fallback beside both laws, p99, goodput; the spike and the lost cache over time."""
    return sheet("Feedline under overload", notes(report), list(_plots(report)))


def _plots(report: dict[str, Any]) -> Iterator[str]:
    cold, warm = report["steps"], report["warm_steps"]
    yield _shares(cold, Law.of(report, "cold"), 0.0, "Fallback without a cache")
    kept = sum(row["cache_share"] for row in warm) / len(warm)
    yield _shares(warm, Law.of(report, "warm"), kept, f"Fallback with a warm cache, {kept:.0%} hits")
    most = max(row["load_times_peak"] for row in cold)
    latency = [
        Line("all answers", _points(cold, "p99_ms")),
        Line("fallbacks", _points(cold, "fallback_p99_ms"), "second"),
        Line("all, warm cache", _points(warm, "p99_ms"), "mark"),
        Line("budget", [(0.0, report["budget_ms"]), (most, report["budget_ms"])], "bad", dotted=False),
    ]
    yield lines(_some(latency), "p99 from the intended send to the last byte", _LOAD, "ms")
    plateau = report["plateau_qps"]
    goodput = [
        Line("cold", _points(cold, "goodput_qps")),
        Line("warm cache", _points(warm, "goodput_qps"), "second"),
        Line("plateau", [(0.0, plateau), (most, plateau)], "mark", dotted=False),
    ]
    yield lines(_some(goodput), "Goodput: complete answers in the budget", _LOAD, "requests/s")
    yield from _over_time(report["spike"], "Ten times the peak for 3 s")
    yield from _over_time(report["flush"], "The cache is lost at twice the peak, clients retry")


def _shares(rows: Sequence[Row], law: Law, hit_share: float, title: str) -> str:
    most = max(row["load_times_peak"] for row in rows)
    curve = [most * (at + 1) / _CURVE for at in range(_CURVE)]
    series = [
        Line("measured", [(x, 100 * y) for x, y in _points(rows, "fallback_share")], joined=False),
        Line("law", [(x, 100 * law.with_costs(x * law.peak_qps, hit_share)) for x in curve], "second", dotted=False),
        Line("simple law", [(x, 100 * law.simple(x * law.peak_qps, hit_share)) for x in curve], "mark", dotted=False),
        Line("non-OK", [(row["load_times_peak"], _non_ok(row)) for row in rows], "bad", joined=False),
    ]
    return lines(_some(series), title, _LOAD, "% of answers")


def _over_time(scene: dict[str, Any], title: str) -> Iterator[str]:
    windows = scene["over_time"]
    shares = [(row["from_s"], 100 * row["fallback_share"]) for row in windows if row["fallback_share"] is not None]
    late = [(row["from_s"], row["p99_ms"]) for row in windows if row["p99_ms"] is not None]
    if shares:
        yield lines([Line("fallback", shares, "second")], f"{title}: fallback", "seconds", "%", dotted=False)
    if late:
        yield lines([Line("p99", late)], f"{title}: p99", "seconds", "ms", dotted=False)


def _points(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    return [(row["load_times_peak"], row[name]) for row in rows if row[name] is not None]


def _non_ok(row: Row) -> float:
    """In hundredths of what was sent."""
    return 100.0 * int(row["non_ok"]) / max(1, int(row["non_ok"]) + int(row["answered"]))


def _some(series: Sequence[Line]) -> list[Line]:
    return [line for line in series if line.points]


def _rows(report: dict[str, Any]) -> list[Row]:
    scenes = (report[name]["steps"] for name in ("step", "spike", "flush"))
    return [*report["steps"], *report["warm_steps"], *(row for rows in scenes for row in rows)]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
