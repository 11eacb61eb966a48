"""What the models of tonight are: rehearsed on the past where there is enough of it, then learned from everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexer.contract import manifest as names
from indexer.contract.items import Rows
from indexer.contract.snapshot import Snapshot, SnapshotError, open_snapshot
from indexer.device import device_of
from indexer.errors import GateFailed
from indexer.learn.lists import make_lists
from indexer.learn.material import Material, Windows, day_of, split
from indexer.learn.onnx_ranker import onnx_scores
from indexer.learn.published import Models, learn_today, without_learning
from indexer.learn.questions import questions
from indexer.learn.rehearsal import NothingToLearn, rehearse
from indexer.learn.rehearsed import ParentRanking, same_scores
from indexer.learn.retrieval import Asked, ask
from indexer.learn.snapshot_ranker import SnapshotRanker, in_rows_of
from indexer.learn.study import Method
from indexer.learn.tower_training import TowerSettings
from indexer.parent import Parent
from indexer.progress import Stages
from indexer.settings import IndexSettings

_PROBED, _TYPICAL = 256, 2048
_SKEW = 1e-4


@dataclass(frozen=True, slots=True)
class Night:
    """The models, and the latest questions of the log: `asked`, by which the index is tuned and the snapshot probed;
    `typical`, others, of which the index learns what is asked."""

    models: Models
    asked: Sequence[Asked]
    typical: Sequence[Asked]


def learn_tonight(
    material: Material, settings: IndexSettings, scratch: Path, folder: Path, stages: Stages, parent: Parent
) -> Night:
    """Writes the models' files to `folder`. Raises GateFailed when numbers are not finite or exports differ."""
    learn = settings.learn
    windows = split(
        material.log,
        train=learn.train_share,
        validate=learn.validate_share,
        evaluate=learn.evaluate_share,
        least=learn.min_sessions,
        parent_end=day_of(parent.last_event) if parent.last_event else None,
        least_after_parent=settings.gates.min_sessions,
    )
    if windows is None:
        sessions = int(np.count_nonzero(np.diff(material.log.starts) >= 2))
        why = f"{sessions} sessions with two items, index.learn.min_sessions is {learn.min_sessions}"
        return _unlearned(material, settings, folder, stages, why)
    ranking = _ranking_of(parent, material, settings, stages) if windows.by_parent else None
    method = Method(_towers(settings), learn.neighbours, settings.query)
    try:
        rehearsal = rehearse(material, windows, scratch, stages, settings, method, ranking)
    except NothingToLearn as error:
        return _unlearned(material, settings, folder, stages, str(error))
    models = learn_today(material, rehearsal, folder, stages, settings.ranker, seed=settings.seed)
    return Night(models, *_asked(material, windows, settings))


def check_skew(night: Night, snapshot: Snapshot, settings: IndexSettings) -> float:
    """The largest difference of a score between training code and the snapshot's files, over the latest questions.

    Raises GateFailed above 1e-4: then the service would rank by other numbers than were learned.
    """
    served = SnapshotRanker(snapshot, threads=settings.thread_count)
    asked = [served.kept(each) for each in night.asked]
    if not asked:
        return 0.0
    spec, models = snapshot.manifest.ranker, night.models
    lists = make_lists(
        asked, served.find(asked), models.study.shelf, models.sources.shared, depth=spec.depth, places=spec.places
    )
    ranked = served.rank(asked)
    ours = onnx_scores(snapshot.path(names.RANKER).read_bytes(), lists)
    worst = same_scores(ours, lists, [(each.rows, each.scores) for each in ranked])
    if not worst <= _SKEW:
        raise GateFailed(f"skew: scores of training and serving differ by {worst:.2g}, at most {_SKEW:g} is allowed")
    return worst


def _unlearned(material: Material, settings: IndexSettings, folder: Path, stages: Stages, why: str) -> Night:
    method = Method(None, settings.learn.neighbours, settings.query)
    return Night(without_learning(material, method, folder, stages, settings.ranker, why=why), (), ())


def _towers(settings: IndexSettings) -> TowerSettings:
    towers = settings.learn.towers
    return TowerSettings(
        places=towers.places,
        targets=towers.targets,
        batch=towers.batch,
        epochs=towers.epochs,
        negatives=towers.negatives,
        sessions=towers.sessions,
        longest_session=settings.learn.neighbours.longest_session,
        device=device_of(towers.device),
        threads=settings.thread_count,
        seed=settings.seed,
    )


def _asked(material: Material, windows: Windows, settings: IndexSettings) -> tuple[list[Asked], list[Asked]]:
    most = _PROBED + _TYPICAL
    late = questions(material.log, windows.evaluate, windows.end, known=True, seed=settings.seed, limit=most)
    asked = ask(late, material.log, settings.ranker.history)
    probed = set(range(0, len(asked), max(1, len(asked) // _PROBED))[:_PROBED])
    return [asked[at] for at in sorted(probed)], [each for at, each in enumerate(asked) if at not in probed]


def _ranking_of(parent: Parent, material: Material, settings: IndexSettings, stages: Stages) -> ParentRanking | None:
    """The parent's own ranking; None, with a note, when it cannot be loaded: damage to it must not stop its heir."""
    try:
        ranker = SnapshotRanker(open_snapshot(parent.folder), threads=settings.thread_count)
    except (SnapshotError, RuntimeError, ValueError) as error:
        stages.note(f"the parent's ranking is no gate: {error}")
        return None

    def ranking(asked: Sequence[Asked]) -> tuple[Sequence[Rows], Sequence[Rows]]:
        theirs = in_rows_of(asked, material.items, ranker.items)
        return [each.rows for each in ranker.rank(theirs)], [each.question.targets for each in theirs]

    return ranking
