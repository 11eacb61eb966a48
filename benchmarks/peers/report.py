"""Rows and a table of what was measured."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.table import Table

from benchmarks.peers.rule import Limits
from benchmarks.peers.systems import FEEDLINE, PEERS
from services.bench.load.measure import Figures
from services.bench.load.report import head
from services.bench.load.shop import Shop

_ASK = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]), sep='\\n')"


def versions(programs: Path, names: Sequence[str]) -> dict[str, str]:
    """Of Feedline and of each system's package in the peers' virtual environment."""
    found = {FEEDLINE: version("feedline")}
    if names:
        packages = [PEERS[name].package for name in names]
        said = subprocess.run(
            [str(programs / "python"), "-c", _ASK, *packages], check=True, capture_output=True, text=True
        )
        found |= dict(zip(names, said.stdout.split(), strict=True))
    return found


def about(shop: Shop, programs: Path, names: Sequence[str]) -> dict[str, Any]:
    """What all rows have in common, and the `versions`."""
    machine = head("feedline bench peers")["machine"]
    return {
        "machine": machine,
        "items": len(shop),
        "synthetic": shop.synthetic,
        "versions": versions(programs, names),
    }


def rows(
    name: str,
    times_plateau: Sequence[float],
    repeats: Sequence[Sequence[Figures]],
    rate: float,
    limits: Limits,
    plateau: Figures,
    common: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """A row for each multiple of the plateau: means over the repeats, their spread, sums of what was counted."""
    found = []
    for place, times in enumerate(times_plateau):
        steps = [steps[place] for steps in repeats]
        goodput = [step["goodput_qps"] for step in steps]
        p99 = [step["latency_ms"]["p99"] for step in steps if step["latency_ms"]["p99"] is not None]
        codes = sum((Counter(step["non_ok_by_code"]) for step in steps), Counter[str]())
        answered = sum(step["answered"] for step in steps)
        cpu = [step["service"]["cpu_s_with_children"] / step["seconds"] for step in steps if step["service"]]
        found.append(
            {
                "system": name,
                "load_times_plateau": times,
                "offered_qps": _mean([step["offered_qps"] for step in steps]),
                "goodput_qps": _mean(goodput),
                "goodput_qps_least": min(goodput),
                "goodput_qps_most": max(goodput),
                "p99_ms": _mean(p99),
                "p99_ms_least": min(p99, default=None),
                "p99_ms_most": max(p99, default=None),
                "non_ok": sum(step["non_ok"] for step in steps),
                "non_ok_by_code": dict(codes.most_common()),
                "offered": sum(step["offered"] for step in steps),
                "answered": answered,
                "fallback_share": _mean([step["fallback_share"] for step in steps if step["answered"]]),
                "service_cores": _mean(cpu),
                "generator_bound": any(step["generator_bound"] for step in steps),
                "repeats": len(steps),
                "never_idle_qps": round(rate, 2),
                "door": limits.door,
                "batch": limits.batch,
                "plateau_qps": plateau["goodput_qps"],
                "plateau_reached": plateau["reached"],
                "version": common["versions"][name],
                "machine": common["machine"],
                "items": common["items"],
                "synthetic": common["synthetic"],
            }
        )
    return found


def table(found: Sequence[Mapping[str, Any]]) -> Table:
    """A line for each row, with how many times Feedline's goodput at the same load is its own."""
    first = found[0]
    items = f"{first['items']:,}{' synthetic' if first['synthetic'] else ''} items"
    title = f"{first['machine']} · {items} · plateau {first['plateau_qps']:,.1f}/s"
    if any(row["generator_bound"] for row in found):
        title += "\n!: the generator was the bottleneck, or others kept its core busy"
    made = Table(title=title, title_justify="left")
    for name in ("system", "version", "load", "offered/s", "goodput/s", "spread", "p99 ms", "non-OK", "Feedline's is"):
        made.add_column(name, justify="left" if name in {"system", "version"} else "right")
    ours = {row["load_times_plateau"]: row["goodput_qps"] for row in found if row["system"] == FEEDLINE}
    for row in found:
        own, at = row["goodput_qps"], row["load_times_plateau"]
        times = f"{ours[at] / own:.1f}x" if own and at in ours else ""
        made.add_row(
            row["system"],
            row["version"],
            f"{at:g}x{'!' if row['generator_bound'] else ''}",
            f"{row['offered_qps']:,.0f}",
            f"{own:,.1f}",
            f"{row['goodput_qps_least']:,.0f}-{row['goodput_qps_most']:,.0f}",
            "" if row["p99_ms"] is None else f"{row['p99_ms']:,.0f}",
            f"{row['non_ok'] / max(1, row['offered']):.1%}",
            times if row["system"] != FEEDLINE else "",
        )
    return made


def _mean(values: Sequence[float]) -> float | None:
    return round(fmean(values), 3) if values else None
