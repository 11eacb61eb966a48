"""What the rules of the slate cost, counted by hand, and the pages that they make of what was served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexer.contract import features
from indexer.contract.history import EMPTY
from indexer.contract.items import ItemTable, Rows
from indexer.contract.manifest import ID_INDEX, ITEMS, VECTORS
from indexer.learn.questions import Question
from indexer.learn.retrieval import Asked
from indexer.learn.slate_costs import slate_costs
from services.slates import RULES, first_pages
from tests.snapshots import Shop, publish_shop


def rows(*values: int) -> Rows:
    return np.array(values, np.int32)


def asked(*targets: Rows) -> list[Asked]:
    return [Asked(Question(at, at, 1.0, features.EMPTY, each), EMPTY) for at, each in enumerate(targets)]


def test_costs_are_paired_differences_of_what_the_first_ten_hold() -> None:
    questions = asked(rows(3), rows(8), rows(5))
    ranked = [rows(3, 1, 2), rows(1, 8, 2), rows(1, 2, 3)]
    second = 1 / np.log2(3)
    pages = {"as it was": ranked, "turned": [rows(1, 3, 2), rows(8, 1, 2), rows(1, 2, 7)]}
    costs = slate_costs(questions, ranked, pages, seed=1)
    assert costs["as it was"] == {
        "ndcg_at_10": pytest.approx((1 + second) / 3, abs=1e-5),
        "difference": {"mean": 0.0, "low": 0.0, "high": 0.0},
        "lift": None,  # a draw of the third question alone has nothing to lose
        "others_in_10": 0.0,
    }
    turned = costs["turned"]
    assert turned["ndcg_at_10"] == pytest.approx((1 + second) / 3, abs=1e-5)
    assert turned["difference"]["low"] < turned["difference"]["mean"] == 0.0 < turned["difference"]["high"]
    assert turned["others_in_10"] == pytest.approx(1 / 3, abs=1e-3)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("snapshots")
    return root / publish_shop(root, Shop(count=80, dimension=8))


def test_every_rule_makes_a_full_page_of_what_was_served_and_starts_with_the_best(snapshot: Path) -> None:
    items = ItemTable.load(snapshot / ITEMS, snapshot / ID_INDEX)
    vectors = np.load(snapshot / VECTORS, allow_pickle=False)
    random = np.random.default_rng(3)
    served = [random.permutation(80)[:count].astype(np.int32) for count in (60, 20, 7, 0)]
    rankings = [(each, np.linspace(2, -1, len(each), dtype=np.float32)) for each in served]
    pages = first_pages(items, vectors, rankings)
    assert list(pages) == list(RULES)
    for rule, shown in pages.items():
        assert [len(each) for each in shown] == [20, 20, 7, 0], rule
        for page, ranking in zip(shown, served, strict=True):
            assert len(np.unique(page)) == len(page)
            assert np.isin(page, ranking).all()
            assert page[:1].tolist() == ranking[:1].tolist()
    capped = pages["category_cap_3"][0]
    free = served[0][:20]
    assert np.bincount(items.category[capped]).max() <= np.bincount(items.category[free]).max()
