"""The steps of a build. Each takes the run and what earlier steps gave, and gives what later ones need."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from indexer.ann.build import build_indexes, passes
from indexer.ann.device import flat_maker
from indexer.ann.tune import Tuned, tune
from indexer.catalogue import Catalogue, load_catalogue
from indexer.contract import manifest as names
from indexer.contract.ann_index import AnnIndex
from indexer.contract.cascade import CascadeSpec
from indexer.contract.items import ItemTable
from indexer.contract.manifest import GoldenQuery, IndexSpec, QuerySpec, RankerSpec, SourcesSpec
from indexer.contract.publish import SnapshotWriter
from indexer.contract.vector_file import map_vectors
from indexer.encoding import Encoded, encode_items
from indexer.event_log import read_log
from indexer.events import Events, load_events
from indexer.gates import Gate, gates
from indexer.golden import contexts_of, contexts_to_tune_by, golden_queries
from indexer.images import set_aside_broken
from indexer.item_files import write_id_index, write_items
from indexer.learn.material import Material, moment_of
from indexer.learn.night import Night, learn_tonight
from indexer.parent import Parent
from indexer.popularity import scaled, score_items, write_lists
from indexer.progress import Stages
from indexer.quarantine import Quarantine
from indexer.row_counts import expected_rows
from indexer.settings import IndexSettings
from indexer.taken_over import digest_of, take_over
from indexer.workspace import Workspace

_CONTENT = "content.npy"


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

    @property
    def content(self) -> Path:
        """Where the content vectors are written, float16 [n, D]."""
        return self.work.folder / _CONTENT


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
class Learned:
    """The models as the manifest and the report say them. `night` None: they are those of the parent.

    `timed`: what searches took here, for the report; empty where the index was not built tonight.
    """

    dimension: int
    query: QuerySpec
    sources: SourcesSpec
    index: IndexSpec
    ranker: RankerSpec
    strong: RankerSpec | None
    cascade: CascadeSpec | None
    golden: tuple[GoldenQuery, ...]
    evaluation: dict[str, Any]
    report: dict[str, Any]
    learned_from: str
    night: Night | None
    timed: list[dict[str, Any]]


def load(run: Run, catalogue: Path, events: Path) -> Loaded:
    """Items and events into the workspace; bad rows into quarantine."""
    with run.stages.stage("catalogue", expected_rows(catalogue), "rows") as advance:
        found = load_catalogue(
            run.work,
            catalogue,
            run.settings.catalogue,
            run.quarantine,
            advance,
            images=run.settings.encoder.images,
            threads=run.settings.thread_count,
        )
    with run.stages.stage("events", expected_rows(events), "rows") as advance:
        happened = load_events(
            run.work, events, run.settings.events, run.quarantine, advance, now=run.now, until=run.until
        )
    return Loaded(found, happened)


def encode(run: Run, loaded: Loaded) -> Encoded:
    """The content vectors; only contents that the vector store lacks are encoded. Broken pictures into quarantine."""
    encoded = encode_items(
        run.work,
        run.stages,
        run.settings.encoder,
        run.settings.vector_store,
        run.content,
        items=loaded.catalogue.items,
        texts=loaded.catalogue.texts,
        threads=run.settings.thread_count,
    )
    if encoded.broken:
        set_aside_broken(run.work, run.quarantine, loaded.catalogue.files, encoded.broken)
    return encoded


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


def learn(run: Run, encoded: Encoded, popular: Popular, parent: Parent) -> Learned:
    """Vectors, neighbours, towers, ranker and index; the parent's when nothing that they depend on has changed."""
    digest = digest_of(run.work, run.settings, encoded.fingerprint)
    kept = take_over(parent.folder if parent.manifest else None, digest, run.writer, run.stages.note)
    if kept is not None:
        run.stages.note(f"models: nothing that they are learned from has changed; taken over from {kept.manifest.id}")
        was = kept.manifest
        return Learned(
            was.dimension, was.query, was.sources, was.index, was.ranker, was.strong_ranker, was.cascade, was.golden,
            was.evaluation, kept.learning, digest, None, [],
        )  # fmt: skip
    night = learn_tonight(
        _material(run, popular.items), run.settings, run.work.folder, run.writer.folder, run.stages, parent
    )
    tuned, golden = _index(run, encoded, night)
    models = night.models
    return Learned(
        models.study.shelf.vectors.shape[1], models.study.query, models.sources, tuned.spec, models.ranker,
        models.strong, models.cascade, golden, models.evaluation, models.report, digest, night, tuned.timed,
    )  # fmt: skip


def check(run: Run, items: ItemTable, parent: Parent, learned: Learned) -> list[Gate]:
    """The gates before publishing, with what was measured."""
    return gates(
        run.settings.gates,
        items=items.count,
        available=int(np.count_nonzero(items.available)),
        parent_items=parent.items,
        recall=learned.index.recall_at_500,
        recall_floor=run.settings.ann.recall_floor,
        evaluation=learned.evaluation,
    )


def _material(run: Run, items: ItemTable) -> Material:
    """What there is to learn from; popularity of a past day knows nothing of what came later."""
    with run.stages.stage("sessions"):
        log = read_log(run.work, items.count, seed=run.settings.seed)

    def popularity_before(day: float | None) -> np.ndarray[Any, np.dtype[np.float32]]:
        if day is None:
            return items.popularity
        moment = moment_of(day)
        return scaled(score_items(run.work, run.settings.popularity, items.count, before=moment, reference=moment))

    content = np.load(run.content, mmap_mode="r", allow_pickle=False)
    return Material(log, content, items, popularity_before)


def _index(run: Run, encoded: Encoded, night: Night) -> tuple[Tuned, tuple[GoldenQuery, ...]]:
    """index.faiss, chosen by the session vectors of real contexts, and of single items where those are too few."""
    settings, study = run.settings.ann, night.models.study
    vectors = map_vectors(run.writer.path(names.VECTORS))
    threads, seed = run.settings.thread_count, run.settings.seed
    items, dimension = vectors.shape
    typical = contexts_of(night.typical)
    vectors_of = study.vectors_of()
    total = items * passes(items, dimension, len(encoded.first_rows), settings)
    with run.stages.stage("index", total, "items") as advance:
        built = build_indexes(
            vectors,
            encoded.first_rows,
            settings,
            run.work.folder,
            typical=vectors_of(typical) if typical else np.empty((0, dimension), np.float32),
            threads=threads,
            seed=seed,
            advance=advance,
            make_flat=flat_maker(settings),
        )
    with run.stages.stage("tune"):
        contexts = contexts_to_tune_by(night.asked, items, settings.tune_queries, seed)
        tuned = tune(built, vectors, vectors_of(contexts), settings, seed=seed)
        index = run.writer.path(names.INDEX)
        shutil.move(tuned.file, index)
        return tuned, golden_queries(AnnIndex.load(index, vectors, tuned.spec), contexts, vectors_of)
