"""Rankings beside one another on the same questions: measures with intervals, paired lifts, one JSON document.

Whoever ranks, offline or served, is measured by the same code: all that counts is what was asked and what came back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.contract.items import Mask, Rows
from indexer.learn.evaluate import PerQuestion
from indexer.learn.interactions import Interactions
from indexer.learn.intervals import Bootstrap, Interval
from indexer.learn.measures import NAMES, Part, cold, coverage, measure, novel, whole
from indexer.learn.questions import Question, questions
from indexer.learn.retrieval import Asked

Rank = Callable[[Sequence[Asked]], Sequence[Rows]]
"""The ranking of each question, in order: rows int32, best first, without what its context holds."""
SETTINGS = ("session", "next_basket")
OURS = "two_stage"
Section = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of two rankings of the same questions: difference and lift of a measure, paired, drawn by user."""

    difference: Interval
    lift: Interval


def compare(ours: PerQuestion, theirs: PerQuestion, users: npt.NDArray[np.integer], *, seed: int) -> Comparison:
    """`users` int [Q]: whose questions these are, -1: nobody known. All NaN when there is no question."""
    bootstrap = Bootstrap(users, seed=seed)
    return Comparison(bootstrap.difference(ours, theirs), bootstrap.lift(ours, theirs))


def ndcg_at_10(rank: Rank, asked: Sequence[Asked]) -> PerQuestion:
    """NDCG@10 of a ranker, float64 [Q]."""
    return measure(whole(asked), rank(asked))["ndcg_at_10"]


def sessions_asked(log: Interactions, start: float, stop: float, *, limit: int, seed: int) -> dict[str, list[Question]]:
    """By setting, the same sessions of [start, stop): of users who had an earlier one before `start`, at most `limit`.

    Newcomers are left out: without a history there is nothing to personalise, and no baseline that is repeat-aware.
    """
    returning = np.zeros(log.n_users, np.bool_)
    earlier = log.users[: int(np.searchsorted(log.begun, start, side="left"))]
    returning[earlier[earlier >= 0]] = True

    def asked(known: bool) -> list[Question]:
        every = questions(log, start, stop, known=known, seed=seed)
        return [each for each in every if each.user >= 0 and returning[each.user]]

    by_setting = {"session": asked(True), "next_basket": asked(False)}
    count = len(by_setting["session"])
    if count > limit:
        chosen = np.sort(np.random.default_rng(seed).permutation(count)[:limit])
        by_setting = {name: [each[at] for at in chosen] for name, each in by_setting.items()}
    return by_setting


def sections(
    asked: Mapping[str, Sequence[Asked]],
    rankings: Mapping[str, Mapping[str, Sequence[Rows]]],
    sold: Mask,
    *,
    seed: int,
) -> dict[str, Any]:
    """The figures of every ranking by setting, and of setting "session" the parts "novel" and "cold".

    `asked` and `rankings` by setting; `sold` bool [n]: items with an event before the window. "lifts" holds by section
    what OURS brings over each other ranking in NDCG@10 (a lift is null where a draw of the other one has none at all);
    "questions", how many each section has.
    """
    parts: dict[str, tuple[str, Part]] = {name: (name, whole(each)) for name, each in asked.items()}
    if "session" in asked:
        parts["novel"] = "session", novel(asked["session"])
        parts["cold"] = "session", cold(asked["session"], sold)
    out: dict[str, Any] = {}
    lifts: dict[str, Section] = {}
    for name, (setting, part) in parts.items():
        users = np.array([each.question.user for each in asked[setting]], np.int64)[part.which]
        out[name], lifts[name] = _section(part, users, rankings[setting], len(sold), seed)
    return {**out, "lifts": lifts, "questions": {name: len(part) for name, (_, part) in parts.items()}}


def _section(
    part: Part, users: npt.NDArray[np.int64], rankings: Mapping[str, Sequence[Rows]], items: int, seed: int
) -> tuple[Section, Section]:
    if not len(part):
        return {}, {}
    bootstrap = Bootstrap(users, seed=seed)
    measures = {name: measure(part, ranked) for name, ranked in rankings.items()}
    section: Section = {}
    for name, values in measures.items():
        intervals = {measured: _rounded(bootstrap.mean(values[measured])) for measured in NAMES}
        section[name] = {measured: intervals[measured]["mean"] for measured in NAMES}
        section[name] |= {"coverage_at_10": round(coverage(rankings[name], items, 10), 5)}
        section[name] |= {"interval": intervals["ndcg_at_10"], "intervals": intervals}
    lifts: Section = {}
    for name, values in measures.items():
        if name != OURS and OURS in measures:
            ours, theirs = measures[OURS]["ndcg_at_10"], values["ndcg_at_10"]
            lift = bootstrap.lift(ours, theirs)
            lifts[name] = {
                "lift": _rounded(lift) if np.isfinite([lift.mean, lift.low, lift.high]).all() else None,
                "difference": _rounded(bootstrap.difference(ours, theirs)),
            }
    return section, lifts


def measured_here(section: Mapping[str, Any]) -> dict[str, Any]:
    """The rankings of a section without those that name a `window` of their own."""
    return {name: row for name, row in section.items() if "window" not in row}


def lines(document: Mapping[str, Any], section: str) -> Iterator[list[str]]:
    """A section as lines of a table, the heading first: by ranking R@50, R@500, NDCG@10, NDCG@50, MRR, and our lift.

    What was measured on another window is left out: see `measured_here`.
    """
    yield [section, "R@50", "R@500", "N@10", "N@50", "MRR", f"{OURS} over it, N@10"]
    for name, row in measured_here(document[section]).items():
        cells = [name]
        for measured in ("recall_at_50", "recall_at_500", "ndcg_at_10", "ndcg_at_50", "mrr"):
            interval = row["intervals"][measured]
            cells.append(f"{row[measured]:.4f} ± {(interval['high'] - interval['low']) / 2:.4f}")
        lift = document["lifts"][section].get(name, {}).get("lift")
        cells.append(f"{lift['mean']:+.1%} ({lift['low']:+.1%} to {lift['high']:+.1%})" if lift else "")
        yield cells


def markdown(document: Mapping[str, Any], section: str) -> str:
    """A section as a Markdown table."""
    heading, *rows = lines(document, section)
    every = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in every)


def _rounded(interval: Interval) -> dict[str, float]:
    return {name: round(value, 5) for name, value in asdict(interval).items()}
