"""Ranking quality of retrieval and of what it is measured against, offline: one run, one window, paired intervals.

    python benchmarks/ranking.py --data complete-journey --content vectors.npy [--json]
    python benchmarks/ranking.py --data online_retail.parquet --content vectors.npy

The served pipeline, ranker and all, is measured by `feedline index evaluate`; this is for work on the sources.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import torch
from ranking_data import SEED, Data, encode, load, online_retail

from indexer.contract.candidates import Shelf
from indexer.contract.history import RepurchaseSpec
from indexer.contract.items import Rows
from indexer.contract.neighbours import NeighbourSpec
from indexer.contract.towers import Mode
from indexer.learn.evaluation import markdown, sections, sessions_asked
from indexer.learn.questions import questions
from indexer.learn.retrieval import (
    Asked,
    Found,
    Retrieval,
    ask,
    by_tower,
    choose_blend,
    find,
    repurchase_model,
)
from indexer.learn.search import exact_search
from indexer.learn.tower_export import item_vectors
from indexer.learn.tower_training import Towers, TowerSettings, later_loss, train
from indexer.learn.tuned import Past, Window, tuned_baselines

__all__ = ["SEED", "online_retail"]
KEPT = 256
"""Items of a history that the service keeps; the baselines see the whole of it."""
MODES: tuple[Mode, ...] = ("shared", "personal")


@dataclass(frozen=True, slots=True)
class Known:
    """What is known as of a window's first day, and by setting the questions asked after it."""

    past: Past
    towers: Towers
    vectors: npt.NDArray[np.float16]
    asked: Mapping[str, Sequence[Asked]]

    def found(self, setting: str, mode: Mode, repurchase: RepurchaseSpec) -> list[Found]:
        """The candidates of a setting's questions, the history cut to what the service keeps."""
        n = len(self.vectors)
        unknown, none = np.full(n, np.nan, np.float32), np.full(n, -1, np.int32)
        near, popular, spec = self.past.near, np.zeros(n, np.float32), NeighbourSpec()
        shelf = Shelf(self.vectors, near.ids, near.similarities, unknown, none, popular, spec, repurchase)
        vectors_of, places = by_tower(self.towers.session, self.vectors), len(self.towers.session.position)
        retrieval = Retrieval(shelf, vectors_of, exact_search(self.vectors), mode, places)
        return find([Asked(each.question, each.history.latest(KEPT)) for each in self.asked[setting]], retrieval)

    def window(self, setting: str) -> Window:
        """The same for the baselines; nothing is said of what is available."""
        return Window(self.past, self.asked[setting], np.ones(len(self.vectors), np.bool_))


def learned(
    data: Data,
    content: npt.NDArray[np.float16],
    towers: TowerSettings,
    days: tuple[float, float],
    limit: int,
    *,
    stopping: bool,
) -> Known:
    """Learns from what came before the first day and asks at most `limit` of the sessions up to the second.

    `stopping`: training ends when the loss on those sessions does not fall any more.
    """
    start, stop = days
    validation = later_loss(data.log, start, stop, towers) if stopping else None
    trained = train(data.log.before(start), content, towers, validation=validation)
    asked = sessions_asked(data.log, start, stop, limit=limit, seed=SEED)
    by_setting = {name: ask(each, data.log, sys.maxsize) for name, each in asked.items()}
    return Known(Past.of(data.log, start), trained, item_vectors(trained, content, 0), by_setting)


def run(data: Data, content: npt.NDArray[np.float16], settings: TowerSettings, limit: int) -> dict[str, Any]:
    """The document of `indexer.learn.evaluation.sections`, with what was chosen and the seconds taken."""
    begun, seconds = time.monotonic(), {}
    ranker, validation, test = data.starts
    chosen_on = learned(data, content, settings, (validation, test), limit, stopping=True)
    settings = replace(settings, epochs=chosen_on.towers.epochs)
    measured = learned(data, content, settings, (test, data.stop), limit, stopping=False)
    seconds["learn_twice"] = time.monotonic() - begun
    earlier = questions(data.log, ranker, validation, known=True, seed=SEED, limit=limit)
    repurchase = repurchase_model(ask(earlier, data.log, KEPT))
    rankings: dict[str, dict[str, Sequence[Rows]]] = {}
    chosen: dict[str, Any] = {"epochs": settings.epochs}
    for setting in measured.asked:
        tuned = list(tuned_baselines(chosen_on.window(setting), measured.window(setting)))
        rankings[setting] = {each.name: each.rows for each in tuned}
        chosen[setting] = {each.name: each.settings for each in tuned}
        for mode in MODES:
            targets = [each.question.targets for each in chosen_on.asked[setting]]
            spec = choose_blend(chosen_on.found(setting, mode, repurchase), targets, 50)
            found = measured.found(setting, mode, repurchase)
            chosen[setting][f"blend_{mode}"] = spec.model_dump()
            rankings[setting][f"towers_{mode}"] = [each.ann for each in found]
            rankings[setting][f"blend_{mode}"] = [each.blend(spec).rows for each in found]
            rankings[setting] |= {"neighbours": [each.neighbours for each in found]}
            rankings[setting] |= {"history": [each.history for each in found]}
    seconds["baselines_and_blends"] = time.monotonic() - begun - sum(seconds.values())
    sold = np.bincount(data.log.before(test).rows, minlength=data.log.n_items) > 0
    return {**sections(measured.asked, rankings, sold, seed=SEED), "chosen": chosen, "seconds": seconds}


def main() -> None:
    """Prints tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="complete-journey, or the path of online_retail.parquet")
    parser.add_argument("--content", type=Path, required=True)
    parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--questions", type=int, default=3000, help="per window, at most")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=6, help="at most")
    parser.add_argument("--targets", type=int, default=8, help="of a session, per step")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    faiss.omp_set_num_threads(arguments.threads)
    data = load(arguments.data)
    content = encode(data.texts, arguments.model, arguments.content)
    settings = TowerSettings(
        batch=arguments.batch, epochs=arguments.epochs, targets=arguments.targets, threads=arguments.threads, seed=SEED
    )
    report = run(data, content, settings, arguments.questions)
    if arguments.json:
        print(json.dumps(report))
        return
    for section in ("session", "next_basket", "novel", "cold"):
        print(f"{report['questions'][section]:,} questions\n\n{markdown(report, section)}\n")
    print(report["chosen"], report["seconds"])


if __name__ == "__main__":
    main()
