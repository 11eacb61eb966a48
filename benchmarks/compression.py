"""What smaller rankers save and lose, and what the cascade wins for its cost: on validation, one thread.

    python benchmarks/compression.py --data complete-journey --content vectors.npy --lists FOLDER [--cascade] [--json]
    python benchmarks/compression.py --data online_retail.parquet --content vectors.npy --lists FOLDER

Windows, towers and candidates are those of benchmarks/ranking.py; prices and categories are left out. The student
learns from the first window's questions, all figures are of the second's. `--lists`: the questions with their
candidates, as arrays, are kept there and read when they are there: making them takes minutes. Milliseconds are ONNX
Runtime's for 50 candidates; throughput and price are of CPU time, with that of blend and features, which was taken when
the lists were made. The cascade's milliseconds are CPU time of single requests, without features.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faiss
import numpy as np
import torch
from ranking import KEPT, Known, learned
from ranking_data import SEED, Data, encode, load

from indexer.contract.candidates import Shelf
from indexer.contract.manifest import QuerySpec
from indexer.contract.neighbours import NeighbourSpec
from indexer.learn.baselines import decayed_popularity
from indexer.learn.cascade import fit_cascade, sweep
from indexer.learn.compress import FLOOR, choose, measure, variants
from indexer.learn.lessons import best_blend, lesson_questions, window
from indexer.learn.list_training import ListSettings
from indexer.learn.lists import Lists
from indexer.learn.listwise import check_listwise, export_listwise
from indexer.learn.onnx_ranker import onnx_scores, run_times
from indexer.learn.questions import questions
from indexer.learn.retrieval import Asked, ask, repurchase_model
from indexer.learn.student import Student, fit_student
from indexer.learn.study import Study
from indexer.learn.teacher import Transformer
from indexer.learn.tower_training import TowerSettings

TRAIN, CHECK = "train.npz", "check.npz"
RUNS = 400
DEPTH, PLACES, HALF_LIFE = 50, 50, 14.0


def make(name: str, content: Path, folder: Path, limit: int, model: str) -> None:
    """Writes the lists of both windows to `folder`."""
    data = load(name)
    vectors = encode(data.texts, model, content)
    ranker, validation, test = data.starts
    towers = TowerSettings(threads=1, seed=SEED)
    later = learned(data, vectors, towers, (validation, test), limit, stopping=True)
    towers = replace(towers, epochs=later.towers.epochs)
    early = learned(data, vectors, towers, (ranker, validation), limit, stopping=False)
    sessions = [Asked(each.question, each.history.latest(KEPT)) for each in later.asked["session"]]
    check = window(study_of(data, later, validation, validation - ranker, limit), sessions, "shared")
    lessons = lesson_questions(data.log, ranker, validation, limit, KEPT, SEED)
    train = window(study_of(data, early, ranker, validation - ranker, limit), lessons, "shared")
    blend = best_blend(check)
    folder.mkdir(parents=True, exist_ok=True)
    for each, file in ((train, TRAIN), (check, CHECK)):
        begun = time.thread_time()
        lists = each.lists(blend, DEPTH, PLACES)
        assembly_s = (time.thread_time() - begun) / len(lists)
        arrays = {field.name: getattr(lists, field.name) for field in fields(lists)}
        np.savez(folder / file, assembly_s=np.float64(assembly_s), **arrays)


def study_of(data: Data, known: Known, day: float, span: float, limit: int) -> Study:
    """What is known as of `day`; the repurchase model is of the `span` days before it."""
    n = len(known.vectors)
    unknown, none = np.full(n, np.nan, np.float32), np.full(n, -1, np.int32)
    before = questions(data.log, day - span, day, known=True, seed=SEED, limit=limit)
    repurchase = repurchase_model(ask(before, data.log, KEPT))
    popular = decayed_popularity(data.log, day, HALF_LIFE)
    near = known.past.near
    shelf = Shelf(known.vectors, near.ids, near.similarities, unknown, none, popular, NeighbourSpec(), repurchase)
    places = len(known.towers.session.position)
    return Study(shelf, QuerySpec(kind="session_tower", places=places), known.towers)


def read(path: Path) -> tuple[Lists, float]:
    """Lists, and the CPU seconds that blend and features of one question took."""
    arrays = np.load(path, allow_pickle=False)
    return Lists(*(arrays[each.name] for each in fields(Lists))), float(arrays["assembly_s"])


def compression(
    student: Student, train: Lists, check: Lists, settings: ListSettings, **prices: float
) -> dict[str, Any]:
    """The table, what the floor lets through, and the seconds that it took."""
    begun = time.perf_counter()
    dimension = check.candidate_vectors.shape[2]
    made = list(variants(student, dimension, train, settings))
    table = measure(made, check, seed=SEED, **prices)
    seconds = time.perf_counter() - begun
    return {"table": [row.as_dict() for row in table], "chosen": choose(table).name, "floor": FLOOR, "seconds": seconds}


def cascade(student: Student, train: Lists, check: Lists) -> dict[str, Any]:
    """A sweep by each kind of doubt; the strong ranker is the listwise transformer, one member."""
    begun = time.perf_counter()
    (strong,) = Transformer(ListSettings(rate=1e-3), members=1).fit(train, check).modules
    dimension = check.candidate_vectors.shape[2]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "strong_ranker.onnx"
        export_listwise(strong, dimension, path)
        parity = check_listwise(strong, dimension, path, seed=SEED)
        (fast,) = variants(student, dimension, train, ListSettings(), wanted=("fp32",))
        models = fast.model, path.read_bytes()
    ours, theirs = (onnx_scores(model, check) for model in models)
    fast_s, strong_s = run_times(models, check, 1, RUNS, seed=SEED, clock=time.thread_time)
    strong_ms = float(np.median(strong_s)) * 1e3
    out: dict[str, Any] = {"parity": parity, "strong_bytes": len(models[1]), "strong_ms": strong_ms}
    for kind in ("margin", "band"):
        spec = fit_cascade(ours, check, strong_ms=strong_ms, kind=kind)
        steps = sweep(ours, theirs, check, spec, fast_s, strong_s, seed=SEED)
        out[kind] = [asdict(step) for step in steps]
    return {**out, "seconds": time.perf_counter() - begun}


def compression_table(report: dict[str, Any]) -> str:
    """Markdown."""
    heads = "", "bytes", "p50 / p99 ms at 1", "at 32", "requests a second", "$ a million", "NDCG@10", "loss (paired)"
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for row in report["table"]:
        loss = row["loss"]
        cells = [row["name"], f"{row['size']:,}", f"{row['p50_ms']:.3f} / {row['p99_ms']:.3f}"]
        cells += [f"{row['batch_p50_ms']:.2f} / {row['batch_p99_ms']:.2f}", f"{row['throughput']:,.0f}"]
        cells += [f"{row['dollars_per_million']:.4f}", f"{row['ndcg_at_10']:.4f}"]
        cells.append(f"{loss['mean']:+.2%} ({loss['low']:+.2%} to {loss['high']:+.2%})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\nfloor {report['floor']:.1%}: {report['chosen']}; {report['seconds']:.0f} s"


def cascade_table(report: dict[str, Any]) -> str:
    """Markdown."""
    heads = (
        "doubt by",
        "sent on",
        "NDCG@10",
        "over all-fast (paired)",
        "of the strong ranker's lift",
        "mean ms",
        "p99 ms",
    )
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for kind in ("margin", "band"):
        for step in report[kind]:
            lift = step["lift"]
            cells = [kind, f"{step['share']:.0%}", f"{step['ndcg_at_10']:.4f}"]
            cells += [f"{lift['mean']:+.2%} ({lift['low']:+.2%} to {lift['high']:+.2%})", f"{step['kept']:.0%}"]
            cells += [f"{step['mean_ms']:.2f}", f"{step['p99_ms']:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + f"\n\nparity {report['parity']:.1e}, {report['seconds']:.0f} s"


def main() -> None:
    """Prints tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="complete-journey, or the path of online_retail.parquet")
    parser.add_argument("--content", type=Path, required=True)
    parser.add_argument("--lists", type=Path, required=True)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--questions", type=int, default=6000, help="per window, at most")
    parser.add_argument("--price", type=float, default=0.04, help="of a vCPU hour, in dollars")
    parser.add_argument("--cascade", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    if not all((arguments.lists / file).exists() for file in (TRAIN, CHECK)):
        make(arguments.data, arguments.content, arguments.lists, arguments.questions, arguments.model)
    (train, _), (check, assembly_s) = (read(arguments.lists / file) for file in (TRAIN, CHECK))
    fitted = fit_student(train, ListSettings(), check=check)
    settings = ListSettings(epochs=fitted.epochs)
    report: dict[str, Any] = {"train": len(train), "check": len(check), "assembly_ms": assembly_s * 1e3}
    prices = {"price_per_vcpu_hour": arguments.price, "assembly_s": assembly_s}
    report["compression"] = compression(fitted.module, train, check, settings, **prices)
    if arguments.cascade:
        report["cascade"] = cascade(fitted.module, train, check)
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['train']:,} lessons, {report['check']:,} questions, {report['assembly_ms']:.2f} ms of features\n")
    print(compression_table(report["compression"]))
    if arguments.cascade:
        print(f"\n{cascade_table(report['cascade'])}")


if __name__ == "__main__":
    main()
