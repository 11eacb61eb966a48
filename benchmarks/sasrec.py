"""SASRec (Kang and McAuley, 2018) by a public implementation on the questions of ranking.py, by the same measures.

    python -m venv sasrec && sasrec/bin/pip install "rectools[torch]==0.19.0"
    python benchmarks/sasrec.py --data online_retail.parquet --python sasrec/bin/python [--json]

A question's sequence is all that the user bought before it and what is known of the session; repeats may be ranked,
what the session holds may not, as for every other ranking. The number of epochs is chosen on the validation
window, figures are of the test window. Loss: gBCE with 128 negatives (Petrov and Macdonald, 2023).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from ranking_data import SEED, Data, load

from indexer.contract.items import Rows
from indexer.learn.evaluation import markdown, ndcg_at_10, sections, sessions_asked
from indexer.learn.interactions import Interactions
from indexer.learn.questions import Question
from indexer.learn.retrieval import Asked, ask

MODEL = Path(__file__).with_name("sasrec_model.py")
DEPTH = 500
BASE: dict[str, Any] = {
    "factors": 64, "blocks": 2, "heads": 2, "length": 50, "batch": 128, "rate": 1e-3, "dropout": 0.2,
    "loss": "gBCE", "negatives": 128, "seed": SEED, "depth": DEPTH,
}  # fmt: skip
GRID = [{"epochs": epochs} for epochs in (10, 30)]


def sequence(
    log: Interactions, question: Question, mine: npt.NDArray[np.int32]
) -> tuple[Rows, npt.NDArray[np.float64]]:
    """Rows and days of what is known when the question is asked, oldest first; `mine`: the user's sessions."""
    places = [np.arange(span.start, span.stop) for span in map(log.session, mine[mine < question.session].tolist())]
    before = np.concatenate([np.empty(0, np.int64), *places])
    before = before[log.days[before] < question.day]
    before = before[np.argsort(log.days[before], kind="stable")]
    start = log.session(question.session).start
    known = np.arange(start, start + len(question.context))
    every = np.concatenate([before, known])
    # A microsecond an event keeps the order of those of one moment.
    return log.rows[every], log.days[every] + np.arange(len(every)) / 86_400e6


def ranked(
    python: Path, data: Data, start: float, asked: Sequence[Asked], settings: dict[str, Any]
) -> tuple[list[Rows], dict[str, float]]:
    """Trains on what came before `start`; the rankings, and the seconds of training and ranking."""
    past = data.log.before(start)
    owner = past.users[past.session_of_event()]
    order = np.flatnonzero(owner >= 0)
    order = order[np.lexsort((np.arange(len(order)), past.days[order], owner[order]))]
    sessions, starts = data.log.sessions_of_users()
    sequences = [
        sequence(data.log, each.question, sessions[starts[each.question.user] : starts[each.question.user + 1]])
        for each in asked
    ]
    with TemporaryDirectory() as folder:
        source, target = Path(folder) / "questions.npz", Path(folder) / "ranked.npz"
        np.savez(
            source,
            user=owner[order].astype(np.int64),
            item=past.rows[order],
            day=past.days[order] + np.arange(len(order)) / 86_400e6,
            asked=np.repeat(np.arange(len(asked)), [len(rows) for rows, _ in sequences]),
            asked_item=np.concatenate([rows for rows, _ in sequences]),
            asked_day=np.concatenate([days for _, days in sequences]),
        )
        options = json.dumps({**BASE, **settings, "questions": len(asked)})
        done = subprocess.run([python, MODEL, source, target, options], stdout=subprocess.PIPE, text=True, check=True)
        rows = np.load(target, allow_pickle=False)["rows"]
    known = [each.question.context.rows for each in asked]
    lists = [row[(row >= 0) & ~np.isin(row, context)] for row, context in zip(rows, known, strict=True)]
    return lists, json.loads(done.stdout.splitlines()[-1])


def run(data: Data, python: Path, limit: int) -> dict[str, Any]:
    """The document of `indexer.learn.evaluation.sections`, setting "session", with what was tried on validation."""
    _, validation, test = data.starts
    stop = data.stop
    before = ask(sessions_asked(data.log, validation, test, limit=limit, seed=SEED)["session"], data.log, sys.maxsize)
    asked = ask(sessions_asked(data.log, test, stop, limit=limit, seed=SEED)["session"], data.log, sys.maxsize)
    tried = []
    for settings in GRID:
        lists, seconds = ranked(python, data, validation, before, settings)
        worth = round(float(ndcg_at_10(lambda _, lists=lists: lists, before).mean()), 4)  # type: ignore[misc]
        tried.append({**settings, "ndcg_at_10": worth, **seconds})
        print(tried[-1], file=sys.stderr, flush=True)
    best = max(tried, key=lambda one: one["ndcg_at_10"])
    lists, seconds = ranked(python, data, test, asked, {"epochs": best["epochs"]})
    sold = np.bincount(data.log.before(test).rows, minlength=data.log.n_items) > 0
    document = sections({"session": asked}, {"session": {"sasrec": lists}}, sold, seed=SEED)
    return {**document, "validation": tried, "chosen": best, "seconds": seconds}


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="complete-journey, or the path of online_retail.parquet")
    parser.add_argument("--python", type=Path, required=True, help="of the environment with RecTools")
    parser.add_argument("--questions", type=int, default=3000, help="per window, at most")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = run(load(arguments.data), arguments.python, arguments.questions)
    if arguments.json:
        print(json.dumps(report))
        return
    for section in ("session", "novel"):
        print(f"{report['questions'][section]:,} questions\n\n{markdown(report, section)}\n")
    print(report["chosen"], report["seconds"])


if __name__ == "__main__":
    main()
