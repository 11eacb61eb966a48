"""The nightly job, as one line: load, encode, popularity, learn, gates, write, publish.

Memory: DuckDB's limit (`memory_limit_mb`), the index itself (4 bytes a number up to `flat_up_to` items, 1 beyond),
about 150 bytes an item and 50 a text, 37 bytes an event, what the models need, and one chunk; never the catalogue as
Python objects.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from indexer.contract import manifest as names
from indexer.contract.manifest import Manifest
from indexer.contract.publish import SnapshotWriter, exclusive, publish, write_json
from indexer.contract.snapshot import SnapshotError, open_snapshot
from indexer.encoding import Encoded
from indexer.errors import GateFailed
from indexer.gates import Gate, overridden
from indexer.learn.night import check_skew
from indexer.parent import Parent, find_parent, next_id
from indexer.progress import Reporter, Stages
from indexer.quarantine import Quarantine
from indexer.report_page import write_page
from indexer.settings import IndexSettings
from indexer.steps import Learned, Loaded, Popular, Run, check, encode, learn, load, popularity
from indexer.summary import BuildSummary
from indexer.workspace import workspace

QUARANTINE = "quarantine"


def build(
    settings: IndexSettings,
    catalogue: Path,
    events: Path,
    out: Path,
    *,
    now: datetime,
    reporter: Reporter,
    until: datetime | None = None,
    force: bool = False,
) -> BuildSummary:
    """Builds a snapshot of the catalogue and its events (those up to `until`) and publishes it in `out`.

    `now` and `until` have a zone. `force` publishes although gates do not hold, and the summary names them; NaN,
    missing parity and damage are never let through. Raises BuildError, or SnapshotError: Locked when another build
    holds `out`. Whatever is raised, and whenever the process is killed, what was current before stays so.
    """
    with exclusive(out, f"feedline index build of {catalogue}"):
        stages = Stages(reporter)
        parent = find_parent(out, stages.note)
        identity = next_id(out, now, f"{settings.model_dump_json()} {parent.id}")
        with (
            workspace(out, threads=settings.thread_count, memory_limit_mb=settings.memory_limit_mb) as work,
            SnapshotWriter(out, identity) as writer,
        ):
            run = Run(settings, work, writer, stages, Quarantine(out / QUARANTINE / f"{identity}.jsonl"), now, until)
            loaded = load(run, catalogue, events)
            encoded = encode(run, loaded)
            popular = popularity(run, loaded)
            learned = learn(run, encoded, popular, parent)
            checked = check(run, popular.items, parent, learned)
            forced = overridden(checked, force=force)
            summary = _summary(run, identity, parent, loaded, encoded, popular, learned, checked, forced)
            with stages.stage("publish"):
                _publish(run, out, summary, loaded, encoded, learned)
        return replace(summary, seconds=stages.seconds)


def _publish(run: Run, out: Path, summary: BuildSummary, loaded: Loaded, encoded: Encoded, learned: Learned) -> None:
    """Report and manifest, the snapshot made durable, read back whole, and only then made current."""
    report = summary.as_dict()
    write_json(run.writer.path(names.REPORT), report)
    write_page(report, run.writer.path(names.REPORT_PAGE))
    last = loaded.events.last
    manifest = Manifest(
        id=summary.snapshot,
        parent=summary.parent,
        created_at=run.now.isoformat(),
        until=run.until.isoformat() if run.until else None,
        last_event=last.isoformat() if last else None,
        learned_from=learned.learned_from,
        items=summary.items,
        dimension=learned.dimension,
        encoder=encoded.fingerprint,
        query=learned.query,
        sources=learned.sources,
        index=learned.index,
        ranker=learned.ranker,
        strong_ranker=learned.strong,
        cascade=learned.cascade,
        golden=learned.golden,
        evaluation=learned.evaluation,
        files=run.writer.files(),
    )
    folder = run.writer.finish(manifest)
    try:
        snapshot = open_snapshot(folder).require_whole()
        if learned.night is not None:
            check_skew(learned.night, snapshot, run.settings)
    except (SnapshotError, GateFailed):
        shutil.rmtree(folder)
        raise
    publish(out, summary.snapshot, keep=run.settings.keep)


def _summary(
    run: Run,
    identity: str,
    parent: Parent,
    loaded: Loaded,
    encoded: Encoded,
    popular: Popular,
    learned: Learned,
    checked: Sequence[Gate],
    forced: list[str],
) -> BuildSummary:
    found, happened = loaded.catalogue, loaded.events
    return BuildSummary(
        snapshot=identity,
        parent=parent.id,
        items=found.items,
        available=int(np.count_nonzero(popular.items.available)),
        distinct_texts=found.texts,
        encoded=encoded.encoded,
        reused=found.texts - encoded.encoded,
        catalogue_rows=found.rows,
        catalogue_bad=found.bad,
        event_rows=happened.rows,
        event_bad=happened.bad,
        event_repeated=happened.repeated,
        event_impressions=happened.impressions,
        event_later=happened.later,
        events=happened.kept,
        sessions=happened.sessions,
        quarantined=run.quarantine.counts,
        quarantine_file=str(run.quarantine.written) if run.quarantine.written else None,
        popularity_lists=popular.lists,
        index=learned.index.model_dump(mode="json") | {"timed": learned.timed},
        ranker=learned.ranker.model_dump(mode="json"),
        learning=learned.report,
        taken_over=learned.night is None,
        evaluation=learned.evaluation,
        gates=[str(gate) for gate in checked],
        overridden=forced,
        seconds=run.stages.seconds,
    )
