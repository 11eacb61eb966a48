"""hnswlib, usearch and ScaNN beside Feedline's index: equal recall, same vectors, same queries, one machine.

    python benchmarks/ann_peers/run.py --catalogue FOLDER --venv FOLDER [--items 250000] [--json FILE]
    python benchmarks/ann_peers/run.py --vectors V.npy --queries Q.npy --venv FOLDER
    python benchmarks/ann_peers/run.py --snapshots FOLDER --events FILE --venv FOLDER

Each system is a process of its own, tuned to the cheapest effort with recall@500 >= the floor on queries that are not
measured. Single queries use one thread, batches of 32 use `--threads`. Rounds go over all systems in turn, each from
another one on; of the rounds medians are shown, and the spread. `--venv`: the environment of the libraries, made when
it is not there. Progress goes to standard error, the table to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import IO, Any

import numpy as np
from inputs import prepare

from indexer.packaged_model import packaged_model
from indexer.settings import EncoderSettings

HERE = Path(__file__).resolve().parent
SYSTEMS = (
    "feedline",
    "hnswlib:m=16,ef_construction=200",
    "hnswlib:m=32,ef_construction=200",
    "usearch:dtype=f16,connectivity=16,expansion_add=128",
    "usearch:dtype=i8,connectivity=16,expansion_add=128",
    "scann:reorder=2,soar=0,leaves_per_1000=2000",
    "scann:reorder=2,soar=1,leaves_per_1000=2000",
    "scann:reorder=3,soar=0,leaves_per_1000=4000",
)
COLUMNS = ("p50_ms", "p99_ms", "batched_qps")


class System:
    """A process that built its index and measures a round when it is asked."""

    def __init__(self, spec: str, python: Path, work: Path, options: argparse.Namespace) -> None:
        self.spec = spec
        limits = {name: str(options.build_threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        self._process = subprocess.Popen(
            [
                *(str(part) for part in (python, HERE / "system.py", work, spec, "--floor", options.floor)),
                *("--build-threads", str(options.build_threads), "--threads", str(options.threads)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if options.verbose else subprocess.DEVNULL,
            text=True,
            env={**os.environ, **limits, "PYTHONPATH": str(HERE.parent.parent) if spec == "feedline" else ""},
        )
        self.rounds: list[dict[str, float]] = []
        self.built = self._answer()

    def round(self) -> None:
        """Measures once more."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()
        self.rounds.append(self._answer())

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()

    def summary(self) -> dict[str, Any]:
        """What was built, the medians of the rounds, and the least and the most."""
        values = {name: [each[name] for each in self.rounds] for name in COLUMNS}
        return {
            "system": self.spec,
            **self.built,
            **{name: round(float(np.median(of)), 3) for name, of in values.items()},
            "spread": {name: [min(of), max(of)] for name, of in values.items()},
        }

    def _answer(self) -> dict[str, Any]:
        out: IO[str] | None = self._process.stdout
        assert out is not None
        line = out.readline()
        if not line:
            raise SystemExit(f"{self.spec}: ended with {self._process.wait()}; --verbose shows why")
        answer: dict[str, Any] = json.loads(line)
        return answer


def environment(folder: Path) -> Path:
    """The Python of the libraries' environment; makes it when it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        _tell(f"{folder}: installing the libraries")
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"], check=True)
    return python


def table(systems: list[dict[str, Any]], floor: float) -> str:
    """In Markdown; of those that hold the floor the fastest of each column stands out."""
    lines = [
        f"| system | point | recall@500 (floor {floor}) | p50 ms | p99 ms | batched /s | index MiB | build s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    holding = [each for each in systems if each["floor_held"]] or systems
    best = {name: (max if name == "batched_qps" else min)(each[name] for each in holding) for name in COLUMNS}
    for each in systems:
        shown = [f"**{each[name]:,.2f}**" if each[name] == best[name] else f"{each[name]:,.2f}" for name in COLUMNS]
        size = f"{each['index_bytes'] / 2**20:,.0f}"
        if each["vector_bytes"]:
            size += f" + {each['vector_bytes'] / 2**20:,.0f} of vectors"
        seconds, recall = (
            each["build_seconds"],
            f"{each['recall_at_500']}{'' if each['floor_held'] else ', floor not held'}",
        )
        parts = [
            each["system"],
            each["operating_point"],
            recall,
            *shown,
            size,
            f"{seconds:,.0f}",
        ]
        lines.append(f"| {' | '.join(map(str, parts))} |")
    return "\n".join(lines)


def main() -> None:
    """Prepares, builds one after the other, measures in turn, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--catalogue", type=Path, help="what `feedline bench catalogue` wrote")
    given.add_argument("--vectors", type=Path, help="float16 or float32 [n, d] in .npy, with --queries")
    given.add_argument("--snapshots", type=Path, help="with --events")
    parser.add_argument("--queries", type=Path)
    parser.add_argument("--events", type=Path)
    model = packaged_model() or EncoderSettings().model
    parser.add_argument("--model", default=model, help="distilled for --catalogue")
    parser.add_argument("--items", type=int, default=250_000, help="the first of the vectors; 0: all")
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--systems", nargs="+", default=SYSTEMS)
    parser.add_argument("--floor", type=float, default=0.95)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of batches")
    parser.add_argument("--build-threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    python, systems = environment(options.venv), []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _tell("vectors, queries and exact search")
        taken = prepare(options, work)
        try:
            for spec in options.systems:
                _tell(f"{spec}: building and tuning")
                systems.append(System(spec, Path(sys.executable) if spec == "feedline" else python, work, options))
            for at in range(options.rounds):
                _tell(f"round {at + 1} of {options.rounds}")
                for system in systems[at % len(systems) :] + systems[: at % len(systems)]:
                    system.round()
        finally:
            for system in systems:
                system.close()
    result = {
        **taken,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "command": shlex.join(["python", *sys.argv]),
        "recall_floor": options.floor,
        "threads": {"single": 1, "batched": options.threads, "build": options.build_threads},
        "systems": [system.summary() for system in systems],
    }
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{taken['source']}: {taken['items']:,} x {taken['dimension']}, {result['machine']}\n")
    print(table(result["systems"], options.floor))


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
