"""What a night knows of the shop at a given day, from the events before it: vectors, session tower, neighbours.

The same code studies the past, to learn rankers and to report, and the present, to publish.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from indexer.contract import manifest as names
from indexer.contract.candidates import Shelf
from indexer.contract.features import Context
from indexer.contract.history import RepurchaseSpec
from indexer.contract.lists import RowLists
from indexer.contract.manifest import QuerySpec
from indexer.contract.neighbours import NeighbourSpec, neighbour_lists
from indexer.contract.towers import Mode
from indexer.learn.interactions import Interactions
from indexer.learn.material import Material
from indexer.learn.questions import questions
from indexer.learn.retrieval import Retrieval, ask, by_mean, by_tower, repurchase_model
from indexer.learn.search import Search
from indexer.learn.tower_export import write_item_vectors
from indexer.learn.tower_training import Towers, TowerSettings, later_loss, train
from indexer.mapped import let_go
from indexer.neighbours import write_neighbours
from indexer.progress import Stages
from indexer.rows_file import rows_file
from indexer.settings import NeighbourSettings

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Method:
    """How vectors and neighbours are made. `towers` None: the content vectors are the item vectors."""

    towers: TowerSettings | None
    neighbours: NeighbourSettings
    query: QuerySpec


@dataclass(frozen=True, slots=True)
class Study:
    """What is known as of one day. Without `towers` the mean of a context's vectors is its session vector."""

    shelf: Shelf
    query: QuerySpec
    towers: Towers | None

    def retrieval(self, search: Search, mode: Mode) -> Retrieval:
        """Retrieval from the vectors, by `search`."""
        return Retrieval(self.shelf, self.vectors_of(), search, mode, self.query.places)

    def vectors_of(self) -> Callable[[Sequence[Context]], Floats]:
        """Session vectors of contexts."""
        if self.towers is None:
            return by_mean(self.shelf.vectors, self.query)
        return by_tower(self.towers.session, self.shelf.vectors)


def study(
    material: Material,
    day: float | None,
    folder: Path,
    stages: Stages,
    method: Method,
    repurchase: RepurchaseSpec,
    *,
    stop_by: float | None = None,
) -> Study:
    """Writes vectors.npy, neighbours.npy and similarities.npy to `folder`, from the events before `day` (None: all).

    `stop_by`: training stops when the loss on sessions in [day, stop_by) does not fall. Raises GateFailed when a vector
    is not finite.
    """
    folder.mkdir(exist_ok=True)
    past = material.log if day is None else material.log.before(day)
    towers, query = None, method.query
    if method.towers is None:
        write_content(material.content, folder / names.VECTORS)
    else:
        sessions = min(int(np.count_nonzero(np.diff(past.starts))), method.towers.sessions or sys.maxsize)
        with stages.stage("towers", method.towers.epochs * sessions, "sessions") as advance:
            later = None
            if day is not None and stop_by is not None:
                later = later_loss(material.log, day, stop_by, method.towers)
            towers = train(past, material.content, method.towers, validation=later, advance=advance)
            write_item_vectors(towers, material.content, folder / names.VECTORS)
            let_go(material.content)
        query = query.model_copy(update={"kind": "session_tower", "places": method.towers.places})
    near = _neighbours(past, folder, stages, method.neighbours)
    vectors = np.load(folder / names.VECTORS, mmap_mode="r", allow_pickle=False)
    items = material.items
    popularity = material.popularity_before(day)
    shelf = Shelf(vectors, *near, items.price, items.category, popularity, NeighbourSpec(), repurchase)
    return Study(shelf, query, towers)


def write_content(content: npt.NDArray[np.float16], target: Path, *, chunk: int = 65_536) -> None:
    """Writes float16 [n, D] to a .npy file, chunk by chunk."""
    with rows_file(target, np.float16, (len(content), content.shape[1])) as append:
        for first in range(0, len(content), chunk):
            append(content[first : first + chunk])


def repurchase_before(
    material: Material, day: float, span: float, *, limit: int, kept: int, seed: int
) -> RepurchaseSpec:
    """The chance that an item of the history is bought again, by at most `limit` sessions of the `span` days before
    `day`; `kept` items of each history."""
    asked = questions(material.log, day - span, day, known=True, seed=seed, limit=limit)
    return repurchase_model(ask(asked, material.log, kept))


def _neighbours(
    past: Interactions, folder: Path, stages: Stages, settings: NeighbourSettings
) -> tuple[RowLists, RowLists]:
    paths = folder / names.NEIGHBOURS, folder / names.SIMILARITIES
    count = min(settings.count, max(1, settings.places // past.n_items), max(1, past.n_items - 1))
    with stages.stage("neighbours", past.n_items, "items") as advance:
        write_neighbours(
            past.matrix(),
            *paths,
            count=count,
            shrink=settings.shrink,
            longest=settings.longest_session,
            pairs=settings.pairs,
            advance=advance,
        )
    ids, similarities = (np.load(path, mmap_mode="r", allow_pickle=False) for path in paths)
    return neighbour_lists(ids, similarities, past.n_items)
