"""A snapshot on trial, as one line: the events after it, who asks what, the baselines, the service, the measures.

Nothing of the window is known before it: the snapshot ends where the window begins, baselines are tuned before it, and
whoever serves gets histories that are exact as of each question.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.contract import manifest as names
from indexer.contract.history import History
from indexer.contract.items import ItemTable, Rows
from indexer.contract.purchases import UserPurchases
from indexer.contract.snapshot import Snapshot, SnapshotError, current_id, open_snapshot
from indexer.contract.towers import Mode
from indexer.contract.visits import Answered, Visit
from indexer.errors import InputError
from indexer.event_log import read_log
from indexer.events import Events, load_events
from indexer.learn.evaluation import OURS, sections, sessions_asked
from indexer.learn.interactions import Interactions
from indexer.learn.material import day_of, moment_of
from indexer.learn.questions import Question
from indexer.learn.remembered import remembered
from indexer.learn.retrieval import Asked, ask
from indexer.learn.served_alike import difference
from indexer.learn.slate_costs import FirstPages, slate_costs
from indexer.learn.snapshot_ranker import SnapshotRanker
from indexer.learn.tuned import Past, Ranked, Window, tuned_baselines
from indexer.learn.visits import make_visits, pasts
from indexer.progress import Advance, Stages
from indexer.quarantine import Quarantine
from indexer.row_counts import expected_rows
from indexer.settings import IndexSettings
from indexer.workspace import Workspace, workspace

Serve = Callable[[Sequence[UserPurchases], Sequence[Visit], Advance], Sequence[Answered]]
"""Serves the snapshot to visits in order of time, and gives the answer of each; told how many are answered."""
_EVERYTHING = 2**31 - 1
_UNSERVED = ("teacher", "student_labels", "student_distilled")
_ALIKE = 1000
"""Questions whose scores are computed offline too."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Sessions that begin in [start, stop) are asked about, at most `count`; baselines are tuned on [tune, start).
    The service keeps `kept` items of each history."""

    start: datetime
    stop: datetime | None
    tune: datetime | None
    count: int
    mode: Mode
    kept: int


def trial(
    settings: IndexSettings,
    snapshot: Snapshot,
    events: Path,
    terms: Terms,
    serve: Serve,
    first_pages: FirstPages,
    stages: Stages,
    now: datetime,
) -> dict[str, Any]:
    """The evaluation as a JSON document. Raises InputError where snapshot, events and terms do not fit each other."""
    require_before(snapshot, terms.start)
    ranker = SnapshotRanker(snapshot.require_whole(), threads=settings.thread_count)
    with _scratch(settings, snapshot) as work:
        happened, log = _read(work, settings, events, terms, stages, now)
    tune, start, stop = _days(log, terms)
    by_setting = sessions_asked(log, start, stop, limit=terms.count, seed=settings.seed)
    before = sessions_asked(log, tune, start, limit=terms.count, seed=settings.seed)
    if not by_setting["session"] or not before["session"]:
        found = f"{len(by_setting['session'])} sessions of returning users after it, {len(before['session'])} before it"
        raise InputError(f"--start {terms.start.isoformat()}: {found}: at least one of each is expected")
    asked = {name: ask(each, log, _EVERYTHING) for name, each in by_setting.items()}

    rankings: dict[str, dict[str, Sequence[Rows]]] = {}
    chosen: dict[str, dict[str, Any]] = {}
    pasts_of = _pasts(log, (tune, start), stages)
    for setting, questions in asked.items():
        tuning = Window(pasts_of[0], ask(before[setting], log, _EVERYTHING), ranker.items.available)
        test = Window(pasts_of[1], questions, ranker.items.available)
        tuned = _baselines(tuning, test, setting, stages)
        rankings[setting] = {each.name: each.rows for each in tuned}
        chosen[setting] = {each.name: each.settings for each in tuned}
    answers, histories = _served(by_setting, log, start, ranker.items, serve, stages, terms.kept)
    with stages.stage("offline"):
        for setting, questions in asked.items():
            known = _with(histories[setting], questions)
            rankings[setting] |= by_source(ranker, known, terms.mode)
            rankings[setting][OURS] = [rows_of(each.item_ids, ranker.items) for each in answers[setting]]
        known = _with(histories["session"], asked["session"])[:_ALIKE]
        alike = difference(known, answers["session"], ranker, terms.mode)
        longer = sum(len(each.history) > terms.kept for each in asked["session"])
    sold = np.bincount(log.before(start).rows, minlength=log.n_items) > 0
    with stages.stage("measure"):
        measured = sections(asked, rankings, sold, seed=settings.seed)
        measured["session"] |= rehearsed(snapshot.manifest.evaluation)
    with stages.stage("slate"):
        heads = [rows_of(each.item_ids[: len(each.scores)], ranker.items) for each in answers["session"]]
        ranked = [(rows, each.scores) for rows, each in zip(heads, answers["session"], strict=True)]
        pages_of = first_pages(ranker.items, ranker.shelf.vectors, ranked)
        costs = slate_costs(asked["session"], heads, pages_of, seed=settings.seed)
    return {
        **measured,
        "kept_of_the_teachers_lift": snapshot.manifest.evaluation.get("kept_of_the_teachers_lift", {}),
        "slate": costs,
        "snapshot": snapshot.id,
        "mode": terms.mode,
        "windows": {"tune": _text(tune), "start": _text(start), "stop": _text(stop)},
        "events": {"rows": happened.rows, "bad": happened.bad, "used": happened.kept},
        **pages(answers),
        "histories_cut": longer,
        "served_vs_offline": alike,
        "served_vs_offline_max_difference": alike["max"],
        "chosen": chosen,
        "seconds": stages.seconds,
    }


def current(root: Path) -> Snapshot:
    """The snapshot that CURRENT names. Raises SnapshotError when there is none."""
    name = current_id(root)
    if name is None:
        raise SnapshotError(f"{root}: nothing is published")
    return open_snapshot(root / name)


def just_before(start: datetime) -> datetime:
    """The moment up to which a snapshot may know events when the window begins at `start`."""
    return start - timedelta(microseconds=1)


def require_before(snapshot: Snapshot, start: datetime) -> None:
    """Raises InputError when the snapshot knows of events at `start` or later."""
    last = snapshot.manifest.last_event or snapshot.manifest.until
    if last is None or datetime.fromisoformat(last) >= start:
        knows = f"knows of events up to {last}" if last else "does not say what events it knows"
        raise InputError(
            f"snapshot {snapshot.id}: {knows}: one built --until {start.isoformat()} or earlier is expected"
        )


def by_source(ranker: SnapshotRanker, asked: Sequence[Asked], mode: Mode) -> dict[str, list[Rows]]:
    """What each source of the snapshot finds by itself, and their blend before it is reranked."""
    sources = ranker.manifest.sources
    spec = sources.shared if mode == "shared" else sources.personal
    found = ranker.find([ranker.kept(each) for each in asked], mode)
    return {
        "towers": [each.ann for each in found],
        "neighbours": [each.neighbours if len(each.context) else each.near for each in found],
        "history": [each.history for each in found],
        "blend": [each.blend(spec).rows for each in found],
    }


def rehearsed(evaluation: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The teacher and the students as the build measured them, before everything was learned again: with `window`,
    which is another one than that of the trial. Nothing where nothing was learned.
    """
    windows, session = evaluation.get("windows", {}), evaluation.get("session", {})
    window = {"start": windows.get("evaluate"), "stop": windows.get("end")}
    return {name: {**session[name], "window": window} for name in _UNSERVED if name in session}


def rows_of(item_ids: Sequence[str], items: ItemTable) -> Rows:
    """The rows of served items, int32."""
    return np.array(items.rows(item_ids), np.int32)


def pages(answers: Mapping[str, Sequence[Answered]]) -> dict[str, Any]:
    """How the service answered: pages, degraded ones, and by rung and by reason how many first pages."""
    every = [each for of_setting in answers.values() for each in of_setting]
    rungs = [each.rung for each in every]
    reasons = [reason for each in every for reason in each.reasons]
    return {
        "pages": sum(each.pages for each in every),
        "degraded_pages": sum(each.degraded for each in every),
        "rungs": {rung: rungs.count(rung) for rung in sorted(set(rungs))},
        "reasons": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
    }


@contextmanager
def _scratch(settings: IndexSettings, snapshot: Snapshot) -> Iterator[Workspace]:
    """A workspace with the snapshot's items, at the snapshot's rows."""
    with (
        TemporaryDirectory(prefix="feedline-trial-") as folder,
        workspace(Path(folder), threads=settings.thread_count, memory_limit_mb=settings.memory_limit_mb) as work,
    ):
        ids = pq.read_table(snapshot.path(names.ITEMS), columns=["item_id"])
        ids = ids.append_column("row", pa.array(np.arange(len(ids), dtype=np.int32)))
        work.sql.register("snapshot_items", ids)
        work.sql.execute("create table items as select item_id, row from snapshot_items")
        work.sql.unregister("snapshot_items")
        yield work


def _read(
    work: Workspace, settings: IndexSettings, events: Path, terms: Terms, stages: Stages, now: datetime
) -> tuple[Events, Interactions]:
    """The events before `stop`, read as the job reads them; bad ones are counted and left out."""
    quarantine = Quarantine(work.folder / "quarantine.jsonl")
    with stages.stage("events", expected_rows(events), "rows") as advance:
        happened = load_events(work, events, settings.events, quarantine, advance, now=now, until=terms.stop)
        items = work.count("select count(*) from items")
        return happened, read_log(work, items, seed=settings.seed)


def _days(log: Interactions, terms: Terms) -> tuple[float, float, float]:
    """tune, start, stop; tuning takes as long before `start` as the window after it when nothing is said."""
    start = day_of(terms.start)
    last = float(np.nextafter(log.begun[-1], np.inf)) if len(log) else start
    stop = day_of(terms.stop) if terms.stop else last
    return day_of(terms.tune) if terms.tune else start - (stop - start), start, stop


def _pasts(log: Interactions, starts: tuple[float, float], stages: Stages) -> list[Past]:
    with stages.stage("item-kNN", 2 * log.n_items, "items") as advance:
        return [Past.of(log, start, advance) for start in starts]


def _baselines(tuning: Window, test: Window, setting: str, stages: Stages) -> list[Ranked]:
    with stages.stage(f"baselines, {setting}", 6, "baselines") as advance:
        found = []
        for each in tuned_baselines(tuning, test):
            found.append(each)
            advance(1)
        return found


def _served(
    by_setting: Mapping[str, Sequence[Question]],
    log: Interactions,
    start: float,
    items: ItemTable,
    serve: Serve,
    stages: Stages,
    kept: int,
) -> tuple[dict[str, list[Answered]], dict[str, list[History]]]:
    """By setting the answers, and the histories that the service knew when it gave them.

    The settings ask at the same moments: one walk through the window answers all.
    """
    every = [(each.day, each.session, name, each) for name, of_setting in by_setting.items() for each in of_setting]
    every.sort(key=lambda one: one[:3])
    questions = [each for _, _, _, each in every]
    visits = make_visits(questions, log, start, items.item_id)
    known = list(pasts(questions, log, start, items.item_id, kept))
    with stages.stage("serve", len(visits), "feeds") as advance:
        answers = serve(known, visits, advance)
    out: dict[str, list[Answered]] = {name: [] for name in by_setting}
    histories: dict[str, list[History]] = {name: [] for name in by_setting}
    told = remembered(known, visits, items.row, kept)
    for (_, _, name, _), answer, history in zip(every, answers, told, strict=True):
        out[name].append(answer)
        histories[name].append(history)
    return out, histories


def _with(histories: Sequence[History], asked: Sequence[Asked]) -> list[Asked]:
    return [Asked(each.question, history) for each, history in zip(asked, histories, strict=True)]


def _text(day: float) -> str:
    return moment_of(day).isoformat()
