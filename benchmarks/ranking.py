"""Ranking quality of retrieval and of what it is measured against: one run, one window, paired intervals.

    python benchmarks/ranking.py --data complete-journey --content vectors.npy [--next-basket] [--json]
    python benchmarks/ranking.py --data online_retail.parquet --content vectors.npy

Time is cut in four: towers and neighbours learn from the past, the repurchase model from the first window, the
baselines' settings and the blend are chosen on the second, figures are of the third. The towers that are measured are
trained up to its first day, in the number of epochs found before. `--content`: content vectors float16 [n, D] in row
order (item ids sorted); computed with `--model` and kept there when the file is absent. Users without an earlier
session are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import faiss
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from indexer.contract.history import RepurchaseSpec
from indexer.contract.items import Rows
from indexer.contract.neighbours import NeighbourSpec
from indexer.contract.towers import Mode
from indexer.learn import baselines
from indexer.learn.baselines import HeuristicSettings, KnnSettings, Neighbours, SessionKnn
from indexer.learn.evaluate import hits, ndcg, recall
from indexer.learn.interactions import PURCHASE, Interactions, interactions
from indexer.learn.intervals import Bootstrap
from indexer.learn.questions import questions
from indexer.learn.retrieval import (
    Asked,
    Found,
    Retrieval,
    ask,
    choose_blend,
    exact_search,
    find,
    padded,
    repurchase_model,
)
from indexer.learn.tifu import Tifu, TifuSettings
from indexer.learn.tower_export import item_vectors
from indexer.learn.tower_training import Towers, TowerSettings, later_loss, train
from indexer.neighbours import write_neighbours
from services.demo.dataset import prepare

DEPTH = 500
KEPT = 256
"""Items of a history that the service keeps; the baselines see the whole of it."""
SEED = 7
Measures = dict[str, npt.NDArray[np.float64]]
_Setting = TypeVar("_Setting")


@dataclass(frozen=True, slots=True)
class Data:
    """Events, the items' texts, and the days at which the windows begin: ranker, validation, test."""

    log: Interactions
    texts: list[str]
    starts: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Window:
    """What is known as of its first day: the past's towers and neighbours, and the questions after it."""

    start: float
    past: Interactions
    towers: Towers
    vectors: npt.NDArray[np.float16]
    near: Neighbours
    asked: list[Asked]

    def found(self, mode: Mode, repurchase: RepurchaseSpec) -> list[Found]:
        """The candidates of its questions, the history cut to what the service keeps."""
        search = exact_search(self.vectors)
        near = NeighbourSpec()
        retrieval = Retrieval(
            self.vectors, self.towers.session, search, self.near.ids, self.near.similarities, near, repurchase, mode
        )
        return find([Asked(each.question, each.history.latest(KEPT)) for each in self.asked], retrieval)


def complete_journey() -> Data:
    """From its package, as the demo converts it."""
    with TemporaryDirectory() as folder:
        files = prepare(Path(folder))
        items, events = pq.read_table(files.catalogue), pq.read_table(files.events)
    items = items.sort_by("item_id")
    parts = [pc.fill_null(items[name], "") for name in ("title", "category", "brand", "description")]
    texts = [". ".join(filter(None, row)) for row in zip(*(part.to_pylist() for part in parts), strict=True)]
    log = _log(events, items["item_id"], "item_id", "user_id", "session_id", "occurred_at")
    return Data(log, texts, _days("2017-10-15", "2017-11-16", "2017-12-01"))


def online_retail(path: Path) -> Data:
    """From the UCI file: no cancellations, quantity and price above 0, known customers, codes of products."""
    table = pq.read_table(path)
    kept = pc.and_(pc.greater(table["Quantity"], 0), pc.greater(table["UnitPrice"], 0))
    kept = pc.and_(kept, pc.and_(pc.is_valid(table["CustomerID"]), pc.is_valid(table["Description"])))
    kept = pc.and_(kept, pc.invert(pc.starts_with(table["InvoiceNo"], "C")))
    table = table.filter(pc.and_(kept, pc.match_substring_regex(table["StockCode"], r"^\d{5}")))
    named = table.group_by("StockCode").aggregate([("Description", "max")]).sort_by("StockCode")
    log = _log(table, named["StockCode"], "StockCode", "CustomerID", "InvoiceNo", "InvoiceDate")
    return Data(log, named["Description_max"].to_pylist(), _days("2011-09-15", "2011-10-18", "2011-11-01"))


def encode(texts: list[str], model: str, target: Path) -> npt.NDArray[np.float16]:
    """Content vectors, each distinct text once; kept at `target`."""
    if not target.exists():
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - only when they are not there

        distinct, place = np.unique(np.array(texts), return_inverse=True)
        encoder = SentenceTransformer(model, device="cpu")
        vectors = encoder.encode(distinct.tolist(), normalize_embeddings=True, convert_to_numpy=True)
        np.save(target, np.asarray(vectors)[place].astype(np.float16))
    return np.asarray(np.load(target, allow_pickle=False), np.float16)


def window(
    data: Data,
    content: npt.NDArray[np.float16],
    towers: TowerSettings,
    start: float,
    stop: float,
    *,
    known: bool,
    limit: int,
    stopping: bool = False,
) -> Window:
    """Learns from what came before `start` and asks at most `limit` of the sessions up to `stop`."""
    past = data.log.before(start)
    validation = later_loss(data.log, start, stop, towers) if stopping else None
    trained = train(past, content, towers, validation=validation)
    with TemporaryDirectory() as folder:
        paths = Path(folder) / "ids.npy", Path(folder) / "similarities.npy"
        write_neighbours(past.matrix(), *paths, count=200, shrink=5, longest=300, advance=lambda done: None)
        near = Neighbours(*(np.load(path) for path in paths))
    seen = np.unique(past.users)
    every = questions(data.log, start, stop, known=known, seed=SEED)
    returning = [each for each in every if each.user >= 0 and each.user in seen]
    chosen = np.random.default_rng(SEED).permutation(len(returning))[:limit]
    asked = ask([returning[at] for at in np.sort(chosen)], data.log, sys.maxsize)
    return Window(start, past, trained, item_vectors(trained, content, 0), near, asked)


def measure(asked: Sequence[Asked], ranked: Sequence[Rows]) -> Measures:
    """By question; the measures of items never bought before are NaN where there is no such target."""
    targets = [each.question.targets for each in asked]
    hit = hits(padded(ranked, DEPTH), targets)
    out = {"ndcg_at_10": ndcg(hit, targets, 10), "ndcg_at_50": ndcg(hit, targets, 50)}
    out |= {"recall_at_50": recall(hit, targets, 50), "recall_at_500": recall(hit, targets, 500)}
    first = np.where(hit.any(axis=1), hit.argmax(axis=1) + 1.0, np.inf)
    out["mrr"] = 1 / first
    new = [each.question.targets[~np.isin(each.question.targets, each.history.rows)] for each in asked]
    some = np.array([len(rows) > 0 for rows in new])
    fresh = [rows[~np.isin(rows, each.history.rows)] for each, rows in zip(asked, ranked, strict=True)]
    wanted = [rows for rows in new if len(rows)]
    hit = hits(padded(fresh, DEPTH)[some], wanted)
    novel = {"novel_ndcg_at_10": ndcg(hit, wanted, 10), "novel_recall_at_500": recall(hit, wanted, 500)}
    for name, values in novel.items():
        out[name] = np.full(len(asked), np.nan)
        out[name][some] = values
    return out


def baseline_rankings(chosen_on: Window, test: Window, log: Interactions) -> Iterator[tuple[str, Any, list[Rows]]]:
    """Name, the settings that were best on validation, and the rankings of the test window."""
    asked = chosen_on.asked[:: max(1, len(chosen_on.asked) // 700)]

    def best(settings: Sequence[_Setting], rank: Callable[[Asked, _Setting], Rows]) -> _Setting:
        def worth(one: _Setting) -> float:
            return float(measure(asked, [rank(each, one) for each in asked])["ndcg_at_10"].mean())

        return max(settings, key=worth)

    popular = {half: baselines.decayed_popularity(log, chosen_on.start, half) for half in (7.0, 14.0, 30.0, 60.0)}
    half = best(list(popular), lambda each, one: baselines.popularity_ranking(each.question, popular[one], DEPTH))
    now = baselines.decayed_popularity(log, test.start, half)
    yield "popularity", {"half_life": half}, [baselines.popularity_ranking(e.question, now, DEPTH) for e in test.asked]

    for last in (20, 100):
        grid = [KnnSettings(last, decay, own) for decay in (1.0, 0.97, 0.93, 0.85) for own in (0.03, 0.1, 0.3, 1.0)]
        knn = best(grid, lambda e, one: baselines.item_knn(e.question, e.history, chosen_on.near, one, DEPTH))
        yield (
            f"item_knn_{last}", asdict(knn),
            [baselines.item_knn(e.question, e.history, test.near, knn, DEPTH) for e in test.asked],
        )  # fmt: skip

    vs = list(product((20, 100), (100, 500), (0.1, 0.5)))
    models = {one: SessionKnn(chosen_on.past, last=one[0], count=one[1], repeats=one[2]) for one in vs}
    like = best(vs, lambda e, one: models[one].rank(e.question, e.history, DEPTH))
    sessions = SessionKnn(test.past, last=like[0], count=like[1], repeats=like[2])
    yield "vsknn", like, [sessions.rank(e.question, e.history, DEPTH) for e in test.asked]

    tifus = {TifuSettings(alpha=own, between=far): None for own in (0.7, 0.9) for far in (0.7, 0.9)}
    users = {one: Tifu(log, chosen_on.start, one) for one in tifus}
    tifu = best(list(tifus), lambda e, one: users[one].rank(e.question, DEPTH))
    nearest = Tifu(log, test.start, tifu)
    yield "tifu_knn", asdict(tifu), [nearest.rank(e.question, DEPTH) for e in test.asked]

    def by_heuristic(each: Asked, one: HeuristicSettings) -> Rows:
        return baselines.heuristic(each.question, each.history, chosen_on.near, popular[half], one, DEPTH)

    tuned = HeuristicSettings(KnnSettings(100, 0.93, 0.0))
    for _ in range(2):
        knns = [KnnSettings(*one) for one in product((20, 100), (0.97, 0.93, 0.85), (0.0, 0.1, 0.3))]
        tuned = best([replace(tuned, knn=one) for one in knns], by_heuristic)
        counts = product((0.1, 0.2, 0.4, 0.8, 1.6, 3.2), (60.0, 120.0, 1e6))
        tuned = best([replace(tuned, count=count, half_life=age) for count, age in counts], by_heuristic)
        tuned = best([replace(tuned, popularity=one) for one in (0.01, 0.03, 0.1, 0.3, 1.0)], by_heuristic)
    ranked = [baselines.heuristic(e.question, e.history, test.near, now, tuned, DEPTH) for e in test.asked]
    yield "heuristic", asdict(tuned), ranked


def run(
    data: Data, content: npt.NDArray[np.float16], settings: TowerSettings, *, known: bool, limit: int
) -> dict[str, Any]:
    """The report: by ranking its measures with intervals, and its lift over the heuristic."""
    seconds: dict[str, float] = {}
    begun = time.monotonic()
    ranker, validation, test = data.starts
    stop = float(data.log.begun[-1]) + 1
    chosen_on = window(data, content, settings, validation, test, known=known, limit=limit, stopping=True)
    settings = replace(settings, epochs=chosen_on.towers.epochs)
    measured = window(data, content, settings, test, stop, known=known, limit=limit)
    seconds["learn_twice"] = time.monotonic() - begun
    rankings: dict[str, list[Rows]] = {}
    chosen: dict[str, Any] = {"epochs": settings.epochs}
    for name, setting, ranked in baseline_rankings(chosen_on, measured, data.log):
        rankings[name], chosen[name] = ranked, setting
    seconds["baselines"] = time.monotonic() - begun - sum(seconds.values())
    earlier = questions(data.log, ranker, validation, known=known, seed=SEED, limit=limit)
    repurchase = repurchase_model(ask(earlier, data.log, KEPT))
    modes: tuple[Mode, ...] = ("shared", "personal")
    for mode in modes:
        targets = [each.question.targets for each in chosen_on.asked]
        spec = choose_blend(chosen_on.found(mode, repurchase), targets, 50)
        found = measured.found(mode, repurchase)
        chosen[f"blend_{mode}"] = spec.model_dump()
        rankings[f"towers_{mode}"] = [each.ann for each in found]
        rankings[f"blend_{mode}"] = [each.blend(spec).rows for each in found]
        rankings |= {"neighbours": [each.neighbours for each in found], "history": [each.history for each in found]}
    seconds["blend"] = time.monotonic() - begun - sum(seconds.values())
    measures = {name: measure(measured.asked, ranked) for name, ranked in rankings.items()}
    bootstrap = Bootstrap(np.array([each.question.user for each in measured.asked]), seed=SEED)
    report: dict[str, Any] = {}
    for name, values in measures.items():
        report[name] = {key: round(float(np.nanmean(value)), 4) for key, value in values.items()}
        report[name]["coverage_at_10"] = len(np.unique(padded(rankings[name], 10))) / data.log.n_items
        for key in ("ndcg_at_10", "recall_at_50", "recall_at_500"):
            report[name][f"{key}_interval"] = asdict(bootstrap.mean(values[key]))
        lift = bootstrap.lift(values["ndcg_at_10"], measures["heuristic"]["ndcg_at_10"])
        report[name]["lift_over_heuristic"] = asdict(lift)
    setting = "session" if known else "next_basket"
    return {setting: report, "questions": len(measured.asked), "chosen": chosen, "seconds": seconds}


def table(report: dict[str, Any]) -> str:
    """The report as a Markdown table."""
    lines = ["| | R@50 | R@500 | N@10 | novel N@10 | novel R@500 | N@10 over heuristic |", "| --- " * 7 + "|"]
    for name, row in report.items():
        cells = [name]
        for key in ("recall_at_50", "recall_at_500", "ndcg_at_10"):
            interval = row[f"{key}_interval"]
            cells.append(f"{row[key]:.4f} ± {(interval['high'] - interval['low']) / 2:.4f}")
        lift = row["lift_over_heuristic"]
        cells += [f"{row['novel_ndcg_at_10']:.4f}", f"{row['novel_recall_at_500']:.4f}"]
        cells.append(f"{lift['mean']:+.1%} ({lift['low']:+.1%} to {lift['high']:+.1%})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _log(events: pa.Table, ids: pa.ChunkedArray, item: str, user: str, session: str, moment: str) -> Interactions:
    known = pa.array(ids.to_pylist())
    events = events.filter(pc.is_in(events[item], value_set=known))  # some products were sold that are not listed
    rows = pc.index_in(events[item], value_set=known).to_numpy().astype(np.int32)
    users, sessions = (events[name].combine_chunks().dictionary_encode().indices.to_numpy() for name in (user, session))
    moments = events[moment].cast(pa.timestamp("us")).to_numpy()
    types = np.full(len(rows), PURCHASE, np.uint8)
    return interactions(
        rows, types, users.astype(np.int64), sessions.astype(np.int64), moments, n_items=len(ids), seed=SEED
    )


def _days(*dates: str) -> tuple[float, float, float]:
    ranker, validation, test = (float(np.datetime64(date, "D").astype(np.int64)) for date in dates)
    return ranker, validation, test


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="complete-journey, or the path of online_retail.parquet")
    parser.add_argument("--content", type=Path, required=True)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--next-basket", action="store_true", help="no item of the session is known")
    parser.add_argument("--questions", type=int, default=3000, help="per window, at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=6, help="at most")
    parser.add_argument("--targets", type=int, default=8, help="of a session, per step")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    faiss.omp_set_num_threads(arguments.threads)
    data = complete_journey() if arguments.data == "complete-journey" else online_retail(Path(arguments.data))
    content = encode(data.texts, arguments.model, arguments.content)
    settings = TowerSettings(
        batch=arguments.batch, epochs=arguments.epochs, targets=arguments.targets, threads=arguments.threads, seed=SEED
    )
    report = run(data, content, settings, known=not arguments.next_basket, limit=arguments.questions)
    if arguments.json:
        print(json.dumps(report))
        return
    setting = "next_basket" if arguments.next_basket else "session"
    print(f"{setting}, {report['questions']:,} questions; {report['seconds']}\n")
    print(f"{table(report[setting])}\n\n{report['chosen']}")


if __name__ == "__main__":
    main()
