"""The nightly job over synthetic catalogues of several sizes: time and memory by stage, and how they grow.

    python benchmarks/build.py --items 500000 1000000 4000000 --out data/build [--keep FOLDER] [--config FILE] [--json]

Writes each catalogue (`feedline bench catalogue`) and builds a snapshot of it in a process of its own, with an empty
vector store: nothing is taken over from another size. The encoder is static unless the settings say otherwise; its
distillation, once in a lifetime, is done before by a build that does not count. Memory is what the process holds
resident, mapped files with it, looked at 20 times a second. The growth exponent is the slope of ln(seconds) over
ln(items), by least squares: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

from indexer.packaged_model import require_packaged_model

_EVERY_S = 0.05
_FEW = 2000
_DONE = ": done, "
_MODEL = "FEEDLINE_INDEX__ENCODER__MODEL"


def feedline(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A command of the product; its streams are pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "services.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def catalogue(items: int, seed: int, folder: Path) -> dict[str, Any]:
    """Writes a synthetic catalogue and its events; what was made."""
    made = feedline("bench", "catalogue", "--items", str(items), "--seed", str(seed), "--out", str(folder), "--json")
    out, err = made.communicate()
    if made.returncode:
        raise SystemExit(err)
    found: dict[str, Any] = json.loads(out)
    return found


def build(data: Path, out: Path, config: Path | None, environment: dict[str, str]) -> dict[str, Any]:
    """The summary of a build, with the peak resident MiB of each stage under "peak_mb"."""
    arguments = ["index", "build", "--catalogue", f"{data}/catalogue.parquet", "--events", f"{data}/events.parquet"]
    given = [] if config is None else ["--config", str(config)]
    job = feedline(*arguments, "--out", str(out), *given, "--force", "--json", environment=environment)
    watch = Watch(job.pid)
    thread = threading.Thread(target=watch.run)
    thread.start()
    said: list[str] = []
    reader = threading.Thread(target=_read_stages, args=(job, watch, said))
    reader.start()
    assert job.stdout is not None
    summary = job.stdout.read()
    reader.join()
    _, _, used = os.wait4(job.pid, 0)
    watch.stop()
    thread.join()
    if not summary:
        raise SystemExit("".join(said))
    found: dict[str, Any] = json.loads(summary)
    seconds = round(used.ru_utime + used.ru_stime, 1)
    return {**found, "peak_mb": watch.by_stage, "peak_rss_mb": used.ru_maxrss >> 10, "cpu_seconds": seconds}


class Watch:
    """Looks at the resident memory of a process; `stage_ended` says to which stage the peak since then belongs."""

    def __init__(self, pid: int) -> None:
        self.by_stage: dict[str, int] = {}
        self._status = Path(f"/proc/{pid}/status")
        self._peak = 0
        self._ended = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> None:
        """Until `stop`, or until the process has gone."""
        while not self._ended.wait(_EVERY_S):
            lines = self._status.read_text(encoding="ascii").splitlines() if self._status.exists() else []
            resident = [int(line.split()[1]) >> 10 for line in lines if line.startswith("VmRSS")]
            with self._lock:
                self._peak = max(self._peak, *resident, 0)

    def stage_ended(self, name: str) -> None:
        """The peak since the last stage ended is that of `name`."""
        with self._lock:
            self.by_stage[name] = max(self.by_stage.get(name, 0), self._peak)
            self._peak = 0

    def stop(self) -> None:
        """Ends `run`."""
        self._ended.set()


def _read_stages(job: subprocess.Popen[str], watch: Watch, said: list[str]) -> None:
    assert job.stderr is not None
    for line in job.stderr:
        said.append(line)
        print(line, end="", file=sys.stderr, flush=True)
        if _DONE in line:
            watch.stage_ended(line.split(_DONE)[0])


def growth(rows: list[dict[str, Any]], name: str) -> float | None:
    """The slope of ln(value) over ln(items); None with one size."""
    if len(rows) < 2:
        return None
    x, y = (np.log([float(row[each]) for row in rows]) for each in ("items", name))
    return round(float(np.polyfit(x, y, 1)[0]), 3)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Every size, one after the other."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="feedline-build-", dir=arguments.out) as scratch:
        folder = Path(scratch)
        environment = _encoder(arguments)
        stores = folder / "distilled"
        catalogue(_FEW, arguments.seed, folder / "few")
        build(folder / "few", folder / "none", arguments.config, environment | _store(stores))
        for items in arguments.items:
            data, store = folder / f"data-{items}", folder / f"store-{items}"
            made = catalogue(items, arguments.seed, data)
            shutil.copytree(stores / "static", store / "static") if (stores / "static").exists() else store.mkdir()
            found = build(data, folder / f"snapshots-{items}", arguments.config, environment | _store(store))
            rows.append(
                {
                    "items": items,
                    "distinct_texts": found["distinct_texts"],
                    "events": found["events"],
                    "catalogue": made["made_by"],
                    "seconds": found["total_seconds"],
                    "cpu_seconds": found["cpu_seconds"],
                    "peak_rss_mb": found["peak_rss_mb"],
                    "seconds_by_stage": found["seconds"],
                    "peak_mb_by_stage": found["peak_mb"],
                    "index": found["index"],
                    "gates": found["gates"],
                }
            )
            snapshots = folder / f"snapshots-{items}"
            if arguments.keep is not None:
                shutil.move(snapshots, arguments.keep / str(items))
            for path in (data, store, snapshots):
                shutil.rmtree(path, ignore_errors=True)
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return {
        "synthetic": True,
        "machine": f"{platform.processor() or platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "command": " ".join(["python", *sys.argv]),
        "builds": rows,
        "growth_exponent": growth(rows, "seconds"),
        "cpu_growth_exponent": growth(rows, "cpu_seconds"),
    }


def _encoder(arguments: argparse.Namespace) -> dict[str, str]:
    """Settings of the encoder; the packaged model, unless one is named in a file or the environment."""
    kind = {"FEEDLINE_INDEX__ENCODER__KIND": arguments.encoder} if arguments.encoder else {}
    named = arguments.config is not None or _MODEL in os.environ
    return kind if named else kind | {_MODEL: require_packaged_model()}


def _store(folder: Path) -> dict[str, str]:
    return {"FEEDLINE_INDEX__VECTOR_STORE": str(folder)}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[500_000, 1_000_000])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("data"), help="where there is room; left as it was")
    parser.add_argument("--config", type=Path, default=None)
    parser.add_argument("--encoder", default="static", help="index.encoder.kind; empty: as the settings say")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for the snapshots, one folder a size")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    for folder in filter(None, (arguments.out, arguments.keep)):
        folder.mkdir(parents=True, exist_ok=True)
    found = measure(arguments)
    if arguments.json:
        json.dump(found, sys.stdout, indent=1)
        print()
        return
    for row in found["builds"]:
        print(f"{row['items']:>10,} items  {row['seconds']:8.1f} s  {row['peak_rss_mb']:6,} MiB")
    print(f"growth exponent {found['growth_exponent']}")


if __name__ == "__main__":
    main()
