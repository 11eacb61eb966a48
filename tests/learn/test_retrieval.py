from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer.contract.blend import BlendSpec
from indexer.contract.candidates import Shelf
from indexer.contract.history import EMPTY, RepurchaseSpec
from indexer.contract.items import Rows
from indexer.contract.neighbours import NeighbourSpec, neighbour_lists
from indexer.learn.evaluate import hits, recall
from indexer.learn.questions import questions
from indexer.learn.retrieval import (
    Asked,
    Retrieval,
    ask,
    by_tower,
    choose_blend,
    find,
    padded,
    repurchase_model,
)
from indexer.learn.search import exact_search, search_in
from indexer.learn.tower_export import item_vectors
from indexer.learn.tower_training import TowerSettings, train
from indexer.neighbours import write_neighbours
from tests.learn.shop import DAYS, FIRST_DAY, Shop

SPLIT = FIRST_DAY + 0.8 * DAYS
TOWERS = TowerSettings(places=20, targets=4, batch=64, epochs=2, id_events=10)


@pytest.fixture(scope="module")
def retrieval(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Retrieval:
    """As of SPLIT; the shop has neither prices nor categories."""
    folder: Path = tmp_path_factory.mktemp("near")
    paths = folder / "ids.npy", folder / "weights.npy"
    past = shop.log.before(SPLIT)
    write_neighbours(past.matrix(), *paths, count=30, shrink=2, longest=100, advance=lambda done: None)
    towers = train(past, shop.content, TOWERS)
    vectors = item_vectors(towers, shop.content, 0)
    n = len(vectors)
    shelf = Shelf(
        vectors,
        *neighbour_lists(np.load(paths[0]), np.load(paths[1]), n),
        np.full(n, np.nan, np.float32),
        np.full(n, -1, np.int32),
        np.zeros(n, np.float32),
        NeighbourSpec(limit=40),
        RepurchaseSpec(),
    )
    return Retrieval(shelf, by_tower(towers.session, vectors), exact_search(vectors), "shared", TOWERS.places)


def worth(asked: list[Asked], ranked: list[Rows]) -> float:
    targets = [each.question.targets for each in asked]
    return float(recall(hits(padded(ranked, 10), targets), targets, 10).mean())


def test_three_sources_find_more_than_each_and_the_blend_is_chosen_on_recall(shop: Shop, retrieval: Retrieval) -> None:
    asked = ask(questions(shop.log, SPLIT, FIRST_DAY + DAYS, known=True, seed=1), shop.log, 50)
    earlier = ask(questions(shop.log, SPLIT - 20, SPLIT, known=True, seed=1), shop.log, 50)
    shelf = replace(retrieval.shelf, repurchase=repurchase_model(earlier))
    found = find(asked, replace(retrieval, shelf=shelf))
    for each, lists in zip(asked, found, strict=True):
        for rows in (lists.ann, lists.history, lists.blend(BlendSpec()).rows):
            assert not np.isin(rows, each.question.context.rows).any()
            assert len(set(rows.tolist())) == len(rows)
    targets = [each.question.targets for each in asked]
    spec = choose_blend(found, targets, 10)
    blended = worth(asked, [each.blend(spec).rows for each in found])
    assert blended >= worth(asked, [each.blend(BlendSpec()).rows for each in found])
    for source in ("ann", "neighbours", "history"):
        assert blended >= worth(asked, [getattr(each, source) for each in found])
    assert np.isfinite([each.vector for each in found]).all()


def test_nothing_known_of_the_session_leaves_history_and_what_goes_with_it(shop: Shop, retrieval: Retrieval) -> None:
    asked = ask(questions(shop.log, SPLIT, FIRST_DAY + DAYS, known=False, seed=1, limit=20), shop.log, 50)
    found = find(asked, retrieval)
    assert all(len(each.near) and len(each.history) and not len(each.neighbours) for each in found)
    assert len({each.ann.tobytes() for each in found}) == 1
    newcomer = [Asked(each.question, EMPTY) for each in asked]
    assert all(len(each.near) == len(each.history) == 0 for each in find(newcomer, retrieval))


def test_beyond_so_many_items_an_inverted_index_finds_nearly_what_exact_search_finds() -> None:
    random = np.random.default_rng(4)
    centres = random.standard_normal((40, 16))
    vectors = (centres[random.integers(0, 40, 6000)] + 0.3 * random.standard_normal((6000, 16))).astype(np.float16)
    queries = vectors[:32].astype(np.float32)
    exact = exact_search(vectors)(queries, 50)
    assert np.array_equal(search_in(vectors, exact_up_to=6000, seed=1)(queries, 50), exact)
    near = search_in(vectors, exact_up_to=5999, seed=1)(queries, 50)
    assert np.mean([len(np.intersect1d(*each)) / 50 for each in zip(near, exact, strict=True)]) > 0.8
