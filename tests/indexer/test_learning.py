"""Examples without leaks, measures by their definitions, and a ranker that learns what there is to learn."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from indexer.contract.features import FEATURES, Floats
from indexer.contract.manifest import QuerySpec
from indexer.errors import GateFailed
from indexer.learn.evaluate import hits, mean_and_margin, ndcg, recall
from indexer.learn.examples import Example, sample, split
from indexer.learn.export import OnnxRanker, check_parity, export_onnx
from indexer.learn.ranker import LinearRanker, TrainingSet, fit, retrieval_order
from indexer.settings import RankerSettings
from indexer.workspace import Workspace
from tests.indexer.shop import NOW, load_items, load_shopping, plain_events, plain_items, scratch, write


def loaded(work: Workspace, tmp_path: Path, events: list[dict[str, Any]], items: int = 50) -> None:
    load_items(work, write(tmp_path / "items.jsonl", plain_items(items)))
    load_shopping(work, write(tmp_path / "events.jsonl", events))


def basket(session: str, rows: list[int], days: float, **more: Any) -> list[dict[str, Any]]:
    """All events at one time, sorted by item, as a till writes them."""
    at = (NOW - timedelta(days=days)).isoformat()
    return [{"session_id": session, "item_id": f"i{row}", "occurred_at": at, **more} for row in sorted(rows)]


def plain(examples: list[Example]) -> list[tuple[list[int], list[int]]]:
    return [(each.context.rows.tolist(), each.targets.tolist()) for each in examples]


def test_sessions_lie_whole_in_one_window_in_order_of_time(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work:
        loaded(work, tmp_path, plain_events(50, 300))
        windows = split(work, RankerSettings())
        assert windows is not None
        assert windows.train < windows.evaluate < windows.end
        train = sample(work, windows.train, windows.evaluate, 1000, QuerySpec(), 1)
        evaluate = sample(work, windows.evaluate, None, 1000, QuerySpec(), 1)
        assert 20 <= len(evaluate) <= 32
        assert 70 <= len(train) <= 92
        crossing = work.count("select count(*) from spans where first < '2026-05-26' and last >= '2026-05-26'")
        inside = sample(work, windows.train, windows.evaluate, 7, QuerySpec(), 1)
        assert crossing <= 1
        assert len(inside) == 7


def test_a_context_is_the_first_items_newest_first_and_the_rest_are_targets(tmp_path: Path) -> None:
    start = NOW - timedelta(days=1)
    rows = [4, 4, 9, 2, 9, 30, 31, 32, 33, 34]
    events = [
        {
            "session_id": "s",
            "item_id": f"i{row}",
            "type": "view",
            "occurred_at": (start + timedelta(minutes=at)).isoformat(),
        }
        for at, row in enumerate(rows)
    ]
    with scratch(tmp_path / "out") as work:
        loaded(work, tmp_path, events)
        assert split(work, RankerSettings()) is not None
        seen = {
            tuple(context): targets
            for seed in range(30)
            for context, targets in plain(sample(work, start, None, 10, QuerySpec(), seed))
        }
    assert seen == {
        (4,): [2, 9, 30, 31, 32, 33, 34],
        (9, 4): [2, 9, 30, 31, 32, 33, 34],
        (9, 2, 4): [30, 31, 32, 33, 34],
        (30, 9, 2, 4): [31, 32, 33, 34],
        (31, 30, 9, 2, 4): [32, 33, 34],
    }


def test_the_order_inside_one_time_is_not_that_of_the_file(tmp_path: Path) -> None:
    """A till sorts a basket by product: taking the file's order would make low numbers contexts, high ones targets."""
    events = [row for at in range(200) for row in basket(f"s{at}", list(range(10)), days=at / 10)]
    with scratch(tmp_path / "out") as work:
        loaded(work, tmp_path, events)
        split(work, RankerSettings())
        examples = sample(work, NOW - timedelta(days=100), None, 1000, QuerySpec(), 1)
        again = sample(work, NOW - timedelta(days=100), None, 1000, QuerySpec(), 1)
    first = [int(each.context.rows[-1]) for each in examples]
    assert len(examples) == 200
    assert len(set(first)) == 10
    assert np.mean(first) == pytest.approx(4.5, abs=0.7)
    assert plain(examples) == plain(again)


def test_sessions_of_one_item_teach_nothing(tmp_path: Path) -> None:
    with scratch(tmp_path / "out") as work:
        loaded(work, tmp_path, [*basket("a", [1], 1), *basket("b", [2], 2), *basket("b", [2], 1)])
        assert split(work, RankerSettings()) is None


def test_measures_follow_their_definitions() -> None:
    targets = [np.array([7, 8], np.int32), np.array([1], np.int32)]
    hit = hits(np.array([[7, 3, 8, -1], [3, 4, -1, -1]]), targets)
    assert hit.tolist() == [[True, False, True, False], [False] * 4]
    best = 1 + 1 / math.log2(3)
    assert ndcg(hit, targets, 10) == pytest.approx([(1 + 1 / math.log2(4)) / best, 0])
    assert ndcg(hit, targets, 1) == pytest.approx([1, 0])
    assert recall(hit, targets, 2) == pytest.approx([0.5, 0])
    assert recall(hit, targets, 500) == pytest.approx([1, 0])
    assert mean_and_margin(np.array([0.0, 1.0])) == pytest.approx((0.5, 1.96 * math.sqrt(0.5) / math.sqrt(2)), abs=1e-5)
    assert mean_and_margin(np.array([0.25])) == (0.25, 0.0)


@given(st.lists(st.integers(-1, 30), min_size=1, max_size=20, unique=True), st.sets(st.integers(0, 30), min_size=1))
def test_ndcg_is_between_0_and_1_and_1_for_the_best_order(ranked: list[int], wanted: set[int]) -> None:
    targets = [np.array(sorted(wanted), np.int32)]
    value = ndcg(hits(np.array([ranked]), targets), targets, 10)[0]
    assert 0 <= value <= 1
    assert ndcg(hits(np.array([sorted(wanted)]), targets), targets, 10)[0] == pytest.approx(1)


def questions(true_weights: list[float], count: int = 400, seed: int = 2) -> TrainingSet:
    """Random features; the two best of each question by the true weights are positive; every second one has a gap."""
    random = np.random.default_rng(seed)
    features: Floats = random.random((count, 12, len(FEATURES)), np.float32)
    scores = features @ np.array(true_weights)
    present = np.ones(scores.shape, np.bool_)
    present[::2, -3:] = False
    scores[~present] = -np.inf
    features[~present] = 0
    positive = scores >= np.sort(scores, axis=1)[:, [-2]]
    return TrainingSet(features, positive, present)


def test_the_ranker_finds_the_order_that_is_in_the_examples() -> None:
    wanted = [4.0, 2.0, 0.0, -3.0, 1.0]
    found = fit(questions(wanted), threads=1).weights.detach().numpy().ravel()
    assert np.dot(found, wanted) / np.linalg.norm(found) / np.linalg.norm(wanted) > 0.99


def test_a_feature_that_never_changes_gets_no_weight() -> None:
    data = questions([1.0, 0, 0, 0, 0])
    features = data.features.copy()
    features[:, :, 2] = 0.25
    assert fit(TrainingSet(features, data.positive, data.present), threads=1).weights[2].item() == pytest.approx(
        0, abs=1e-3
    )


def test_fitting_twice_gives_the_same_weights() -> None:
    first, second = (fit(questions([1.0, 2, 3, 4, 5]), threads=1).weights for _ in range(2))
    assert torch.equal(first, second)


def test_questions_without_a_positive_are_left_out() -> None:
    data = questions([1.0, 0, 0, 0, 0], count=10)
    positive = data.positive.copy()
    positive[:4] = False
    assert len(TrainingSet(data.features, positive, data.present).answerable()) == 6


def test_onnx_scores_as_torch_does_whatever_the_batch(tmp_path: Path) -> None:
    ranker = fit(questions([4.0, 2.0, 0.0, -3.0, 1.0]), threads=1)
    spec = export_onnx(ranker, tmp_path / "ranker.onnx", depth=50)
    exported = OnnxRanker(tmp_path / "ranker.onnx")
    assert check_parity(ranker, exported, [np.ones((50, len(FEATURES)), np.float32)], seed=1) <= 1e-5
    assert exported.score(np.zeros((3, 17, len(FEATURES)), np.float32)).shape == (3, 17)
    assert spec.output == "scores"
    assert [(each.name, each.dtype, each.shape, each.columns) for each in spec.inputs] == [
        ("features", "float32", ("batch", "candidates", 5), FEATURES)
    ]


def test_one_ranker_is_one_file_and_another_has_another_id(tmp_path: Path) -> None:
    first = export_onnx(retrieval_order(), tmp_path / "a.onnx", depth=50)
    second = export_onnx(retrieval_order(), tmp_path / "b.onnx", depth=50)
    other = export_onnx(LinearRanker(np.array([1.0, 1, 0, 0, 0])), tmp_path / "c.onnx", depth=50)
    assert first.id == second.id != other.id
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert b"/" not in (tmp_path / "a.onnx").read_bytes(), "no file name of the machine that built it"


def test_an_export_that_scores_otherwise_is_refused(tmp_path: Path) -> None:
    export_onnx(LinearRanker(np.array([1.0, 0, 0, 0, 1e-4])), tmp_path / "ranker.onnx", depth=50)
    with pytest.raises(GateFailed, match="parity: ONNX and torch scores differ by"):
        check_parity(retrieval_order(), OnnxRanker(tmp_path / "ranker.onnx"), [], seed=1)


def test_an_export_that_scores_nan_is_refused(tmp_path: Path) -> None:
    ranker = LinearRanker(np.array([np.nan, 0, 0, 0, 0]))
    export_onnx(ranker, tmp_path / "ranker.onnx", depth=50)
    with pytest.raises(GateFailed, match="no_nan"):
        check_parity(ranker, OnnxRanker(tmp_path / "ranker.onnx"), [], seed=1)
