"""The steps of a build. Each takes the run and what earlier steps gave, and gives what later ones need."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from indexer.ann import build_index, search, tune, write_index
from indexer.catalogue import Catalogue, load_catalogue
from indexer.contract import manifest as names
from indexer.contract.features import Context, query_vector
from indexer.contract.items import ItemTable
from indexer.contract.manifest import GoldenQuery, IndexSpec
from indexer.contract.publish import SnapshotWriter
from indexer.encoding import Encoded, encode_items
from indexer.events import TYPE_NUMBER, Events, load_events
from indexer.gates import Gate, gates
from indexer.item_files import write_id_index, write_items
from indexer.learn.examples import Windows, sample, split
from indexer.learn.export import OnnxRanker
from indexer.learn.train import Learned, Lesson, Retrieval, evaluate, train
from indexer.parent import Parent
from indexer.popularity import scaled, score_items, write_lists
from indexer.progress import Stages
from indexer.quarantine import Quarantine
from indexer.row_counts import expected_rows
from indexer.settings import IndexSettings
from indexer.vector_store import Vectors
from indexer.workspace import Workspace

GOLDEN_QUERIES = 8
GOLDEN_DEPTH = 10
GOLDEN_TYPE = TYPE_NUMBER["view"]
"""The event type of every item in a golden context."""


@dataclass(frozen=True, slots=True)
class Run:
    """One build: what every step needs."""

    settings: IndexSettings
    work: Workspace
    writer: SnapshotWriter
    stages: Stages
    quarantine: Quarantine
    now: datetime
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """What was read."""

    catalogue: Catalogue
    events: Events


@dataclass(frozen=True, slots=True)
class Popular:
    """The items as the service will see them, and the number of popularity lists."""

    items: ItemTable
    lists: int


@dataclass(frozen=True, slots=True)
class Lessons:
    """What the ranker is fitted on and judged by; `windows` None: there are no sessions."""

    windows: Windows | None
    train: Lesson
    evaluate: Lesson


@dataclass(frozen=True, slots=True)
class Indexed:
    """The index at its operating point."""

    retrieval: Retrieval
    spec: IndexSpec


@dataclass(frozen=True, slots=True)
class Judged:
    """The ranker, and what the evaluation says; its "sessions" may be 0, with the reason in "why"."""

    learned: Learned
    evaluation: dict[str, Any]


def load(run: Run, catalogue: Path, events: Path) -> Loaded:
    """Items and events into the workspace; bad rows into quarantine."""
    with run.stages.stage("catalogue", expected_rows(catalogue), "rows") as advance:
        found = load_catalogue(run.work, catalogue, run.settings.catalogue, run.quarantine, advance)
    with run.stages.stage("events", expected_rows(events), "rows") as advance:
        happened = load_events(
            run.work, events, run.settings.events, run.quarantine, advance, now=run.now, until=run.until
        )
    return Loaded(found, happened)


def encode(run: Run, loaded: Loaded) -> Encoded:
    """vectors.npy; only texts that the vector store lacks are encoded."""
    return encode_items(
        run.work,
        run.stages,
        run.settings.encoder,
        run.settings.vector_store,
        run.writer.path(names.VECTORS),
        items=loaded.catalogue.items,
        texts=loaded.catalogue.texts,
        threads=run.settings.thread_count,
    )


def popularity(run: Run, loaded: Loaded) -> Popular:
    """popular.parquet, items.parquet and id_index.npy, by all events."""
    items = loaded.catalogue.items
    with run.stages.stage("popularity"):
        reference = run.until or loaded.events.last
        scores = score_items(run.work, run.settings.popularity, items, before=None, reference=reference)
        lists = write_lists(run.work, run.settings.popularity, run.writer.path(names.POPULAR))
        write_items(run.work, scaled(scores), run.writer.path(names.ITEMS))
        write_id_index(run.work, items, run.writer.path(names.ID_INDEX))
        return Popular(ItemTable.load(run.writer.path(names.ITEMS), run.writer.path(names.ID_INDEX)), lists)


def lessons(run: Run, items: int) -> Lessons:
    """Sessions to learn from and to be judged by, each with the popularity of the time before its window."""
    settings = run.settings.ranker
    with run.stages.stage("sessions"):
        windows = split(run.work, settings)
        if windows is None:
            nothing = Lesson((), np.zeros(items))
            return Lessons(None, nothing, nothing)

        def lesson(start: datetime, stop: datetime | None, limit: int) -> Lesson:
            examples = sample(run.work, start, stop, limit, run.settings.query, run.settings.seed)
            scores = score_items(run.work, run.settings.popularity, items, before=start, reference=start)
            return Lesson(examples, scores)

        return Lessons(
            windows,
            lesson(windows.train, windows.evaluate, settings.train_sessions),
            lesson(windows.evaluate, None, settings.evaluate_sessions),
        )


def index(run: Run, encoded: Encoded, lessons: Lessons) -> Indexed:
    """index.faiss, tuned on queries of sessions, and of single items where sessions are too few."""
    settings = run.settings.ann
    vectors: Vectors = np.load(run.writer.path(names.VECTORS), mmap_mode="r", allow_pickle=False)
    with run.stages.stage("index", len(vectors), "items") as advance:
        built = build_index(
            vectors,
            encoded.first_rows,
            settings,
            threads=run.settings.thread_count,
            seed=run.settings.seed,
            advance=advance,
        )
        write_index(built, run.writer.path(names.INDEX))
    with run.stages.stage("tune"):
        contexts = _contexts(lessons, len(vectors), settings.tune_queries, run.settings.seed)
        queries = np.stack([query_vector(vectors, context, run.settings.query) for context in contexts])
        spec = tune(built, vectors, queries, settings)
    return Indexed(Retrieval(built, spec.nprobe, vectors, run.settings.query), spec)


def learn(run: Run, lessons: Lessons, items: ItemTable, retrieval: Retrieval) -> Judged:
    """ranker.onnx, and what it is worth in the evaluation window.

    No event of the window or after it is known to features or popularity; prices are the catalogue's, of today.
    """
    settings = run.settings.ranker
    path = run.writer.path(names.RANKER)
    with run.stages.stage("learn"):
        learned = train(
            lessons.train,
            items,
            retrieval,
            path,
            depth=settings.depth,
            least=settings.min_sessions,
            threads=run.settings.thread_count,
            seed=run.settings.seed,
        )
    sessions = len(lessons.evaluate.examples)
    evaluation = {"task": "the rest of a session after its first 1 to 5 items", "sessions": sessions}
    if lessons.windows is None or not sessions:
        return Judged(learned, {**evaluation, "why": "no session with two items in the evaluation window"})
    windows = {name: moment.isoformat() for name, moment in asdict(lessons.windows).items()}
    with run.stages.stage("evaluate"):
        figures = evaluate(lessons.evaluate, items, retrieval, OnnxRanker(path), settings.depth)
    return Judged(learned, {**evaluation, "windows": windows, **figures})


def check(run: Run, items: ItemTable, parent: Parent, indexed: Indexed, judged: Judged) -> list[Gate]:
    """The gates before publishing, with what was measured."""
    return gates(
        items=items.count,
        available=int(np.count_nonzero(items.available)),
        parent_items=parent.items,
        max_shrink=run.settings.gates.max_shrink,
        recall=indexed.spec.recall_at_500,
        recall_floor=run.settings.ann.recall_floor,
        evaluation=judged.evaluation,
        min_sessions=run.settings.ranker.min_sessions,
        ranker_tolerance=run.settings.gates.ranker_tolerance,
    )


def golden_queries(run: Run, lessons: Lessons, retrieval: Retrieval) -> tuple[GoldenQuery, ...]:
    """What the service must answer alike: contexts as if all their items had been viewed, and their best rows."""
    contexts = _contexts(lessons, len(retrieval.vectors), GOLDEN_QUERIES, run.settings.seed)
    viewed = [Context(each.rows, np.full(len(each), GOLDEN_TYPE, np.uint8)) for each in contexts]
    queries = np.stack([query_vector(retrieval.vectors, each, retrieval.query) for each in viewed])
    scores, rows = search(retrieval.index, queries, GOLDEN_DEPTH, retrieval.nprobe)
    found = rows >= 0
    return tuple(
        GoldenQuery(
            rows=tuple(each.rows.tolist()),
            top_rows=tuple(rows[at][found[at]].tolist()),
            top_scores=tuple(scores[at][found[at]].tolist()),
        )
        for at, each in enumerate(viewed)
    )


def _contexts(lessons: Lessons, items: int, wanted: int, seed: int) -> list[Context]:
    contexts = [example.context for lesson in (lessons.evaluate, lessons.train) for example in lesson.examples][:wanted]
    rows = np.random.default_rng(seed).integers(0, items, wanted - len(contexts)).astype(np.int32)
    return contexts + [Context(rows[[at]], np.array([GOLDEN_TYPE], np.uint8)) for at in range(len(rows))]
