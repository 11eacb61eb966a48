"""One library in a process of its own: builds, tunes, then measures a round for each line on standard input.

    python system.py WORK SPEC --floor 0.95 --build-threads 2 --threads 2

SPEC: a library and its options, e.g. "hnswlib:m=16,ef_construction=200". Answers are lines of JSON: what was built and
tuned, then p50, p99 and queries a second of each round. Ends with standard input.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

from peers import LIBRARIES, Build, Built, Options
from searching import Work, asked, recall, timed, tuned


def spec_of(text: str) -> tuple[str, Options]:
    """The library and its options. Raises SystemExit on another form."""
    library, _, rest = text.partition(":")
    options: Options = {}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        if not equals:
            raise SystemExit(f"{text}: {part!r}: key=value is expected")
        options[key] = int(value) if value.isdigit() else value
    if library != "feedline" and library not in LIBRARIES:
        raise SystemExit(f"{text}: feedline, {', '.join(LIBRARIES)} are expected")
    return library, options


def _built(library: str, build: Build) -> Built:
    if library == "feedline":
        from feedline_index import feedline  # noqa: PLC0415 - needs Feedline, which the peers' environment lacks

        return feedline(build)
    return LIBRARIES[library](build)


def main() -> None:
    """Builds, tunes, answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("spec", type=spec_of)
    parser.add_argument("--floor", type=float, default=0.95)
    parser.add_argument("--build-threads", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    library, given = options.spec
    work = Work.load(options.work)
    begun = time.perf_counter()
    built = _built(library, Build(work, options.work, options.floor, given, options.build_threads, options.threads))
    seconds = time.perf_counter() - begun
    searcher = built.searcher

    def recall_at(effort: int) -> float:
        return recall(work, work.tune, work.tune_least, asked(searcher, work.tune, effort))

    begun = time.perf_counter()
    effort, reached = tuned(recall_at, options.floor, built.least, built.most)
    tuning = time.perf_counter() - begun
    found = asked(searcher, work.ask, effort)
    _say(
        {
            "version": importlib.metadata.version("faiss-cpu" if library == "feedline" else library),
            "build_seconds": round(seconds, 1),
            "tune_seconds": round(tuning, 1),
            "index_bytes": searcher.bytes,
            "vector_bytes": getattr(searcher, "vector_bytes", 0),
            "operating_point": getattr(searcher, "point", effort),
            "recall_at_500": round(recall(work, work.ask, work.ask_least, found), 4),
            "floor_held": reached >= options.floor,
            "found_nothing": sum(len(rows) == 0 for rows in found),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
    )
    for _ in sys.stdin:
        _say({key: round(value, 3) for key, value in timed(searcher, work.ask, effort).items()})


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
