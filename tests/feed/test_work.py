from __future__ import annotations

from dataclasses import replace

import pytest

from indexer.contract.history import EMPTY
from services.domain import PastPurchase, PastPurchases
from services.feed.admission import FULL, PERSONAL
from services.feed.loaded import Loaded
from services.feed.rerank import score
from services.feed.work import Person, Work, history_of
from tests.feed.shops import open_shop, question
from tests.snapshots import Shop

DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return open_shop(tmp_path_factory.mktemp("snapshots"), Shop(count=10, dimension=4))


def bought(item: str, times: int, first_day: float, last_day: float) -> PastPurchase:
    return PastPurchase(item, times, int(first_day * DAY_MS), int(last_day * DAY_MS))


PAST = PastPurchases((bought("i7", 2, 10, 90.5), bought("gone", 1, 80, 80), bought("i2", 1, 70, 70)), 3)


def test_a_history_holds_what_the_snapshot_knows_the_latest_first(loaded: Loaded) -> None:
    history = history_of(loaded, PAST)
    assert history.rows.tolist() == [7, 2]
    assert history.times.tolist() == [2, 1]
    assert (history.first.tolist(), history.last.tolist()) == ([10, 70], [90.5, 70])
    assert history.sessions == 3  # in which something was bought, known today or not


def test_a_history_is_as_long_as_the_snapshot_says(loaded: Loaded) -> None:
    for kept in (0, 1):
        sources = loaded.manifest.sources.model_copy(update={"history": kept})
        short = replace(loaded, manifest=loaded.manifest.model_copy(update={"sources": sources}))
        assert history_of(short, PAST).rows.tolist() == [7, 2][:kept]


def test_of_nothing_known_nothing_is_left(loaded: Loaded) -> None:
    for past in (PastPurchases(), PastPurchases((bought("gone", 1, 80, 80),), 1)):
        assert history_of(loaded, past) is EMPTY


def test_what_brings_its_candidates_along_weighs_less(loaded: Loaded) -> None:
    asked = question(loaded, 1)
    (scored,) = score([Work(asked)])
    works = [Work(asked), Work(asked, Person()), Work(asked, Person(), scored.answer)]
    assert [(work.weight, work.alone) for work in works] == [(FULL, False), (FULL, True), (PERSONAL, False)]
