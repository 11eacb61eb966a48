"""The cascade: doubt is told alike offline and online, and what is sent on fits into the time that is left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from indexer.contract.cascade import CascadeSpec, doubt
from indexer.errors import GateFailed
from indexer.learn.cascade import fit_cascade, sweep
from indexer.learn.list_training import ListSettings, score
from indexer.learn.lists import Lists, Scores
from indexer.learn.listwise import Listwise, check_listwise, export_listwise, listwise_inputs
from indexer.learn.onnx_file import cpu_session
from indexer.learn.onnx_ranker import onnx_scores
from indexer.learn.teacher import Transformer
from services.feed.cascade import StrongCost, escalate, uncertain
from tests.learn.some_lists import CANDIDATES, DIMENSION, PLACES, make_some_lists

KINDS = pytest.mark.parametrize("kind", ["margin", "band"])


@pytest.fixture(scope="module")
def lists() -> Lists:
    return make_some_lists(200, seed=3)


@pytest.fixture(scope="module")
def fast(lists: Lists) -> Scores:
    noise = np.random.default_rng(4).standard_normal(lists.rows.shape)
    return (lists.positive + noise).astype(np.float32)


@pytest.fixture(scope="module")
def strong(lists: Lists) -> Scores:
    noise = np.random.default_rng(5).standard_normal(lists.rows.shape)
    return (lists.positive + 0.3 * noise).astype(np.float32)


def present(scores: Scores, lists: Lists) -> list[Scores]:
    return [row[there] for row, there in zip(scores, lists.present, strict=True)]


@KINDS
def test_about_the_wanted_share_is_uncertain(fast: Scores, lists: Lists, kind: str) -> None:
    spec = fit_cascade(fast, lists, strong_ms=1, kind=kind, page=5)  # type: ignore[arg-type]
    for share in (0.0, 0.1, 0.25, 0.5, 1.0):
        found = np.mean([uncertain(each, spec, share) for each in present(fast, lists)])
        assert found == pytest.approx(share, abs=0.02)


def test_the_smaller_the_gap_at_the_cut_the_greater_the_doubt() -> None:
    spec = CascadeSpec(page=2, levels=(0.0, -9.0), strong_ms=1)
    wide, narrow = np.array([5, 1, 4, 0], np.float32), np.array([5, 3.5, 4, 0], np.float32)
    assert doubt(wide, spec) == -3
    assert doubt(narrow, spec) == -0.5
    assert doubt(narrow[:2], spec) == float("-inf")


def test_a_crowd_of_likely_purchases_at_the_cut_is_doubtful() -> None:
    spec = CascadeSpec(kind="band", page=2, levels=(0.0, -9.0), strong_ms=1, width=2)
    crowd, clear = np.array([3, 3, 3, 3, 0], np.float32), np.array([3, 3, 0, 0, 0], np.float32)
    assert doubt(crowd, spec) > doubt(clear, spec)


def test_probabilities_are_calibrated_on_labels(fast: Scores, lists: Lists) -> None:
    spec = fit_cascade(fast, lists, strong_ms=1, kind="band", page=5)
    assert spec.slope > 0.5


def test_without_a_cut_there_is_no_cascade(fast: Scores, lists: Lists) -> None:
    with pytest.raises(ValueError, match="more than page = 20 candidates"):
        fit_cascade(fast, lists, strong_ms=1, page=CANDIDATES)


def test_the_sweep_runs_from_all_fast_to_all_strong(fast: Scores, strong: Scores, lists: Lists) -> None:
    spec = fit_cascade(fast, lists, strong_ms=2, page=5)
    steps = sweep(fast, strong, lists, spec, np.full(50, 1e-3), np.full(50, 5e-3), seed=1)
    shares = [each.share for each in steps]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert (steps[0].kept, steps[-1].kept) == (0, 1)
    assert steps[0].ndcg_at_10 == pytest.approx(lists.ndcg(fast).mean())
    assert steps[-1].ndcg_at_10 == pytest.approx(lists.ndcg(strong).mean())
    assert [steps[0].mean_ms, steps[-1].mean_ms] == pytest.approx([1, 5])
    half = steps[-3]
    assert half.share == pytest.approx(0.5, abs=0.02)
    assert half.mean_ms == pytest.approx(1 + 5 * half.share, abs=0.01)
    assert half.p99_ms == pytest.approx(6)
    assert 0 < half.kept < 1
    assert half.lift.low > 0


def test_the_most_doubtful_go_first_and_only_as_many_as_time_allows() -> None:
    spec = CascadeSpec(page=1, levels=(0.0, -1.0, -9.0), strong_ms=1)
    scores = [np.array([gap, 0], np.float32) for gap in (0.5, 8.0, 0.1, 0.9)]
    assert escalate(scores, 1.0, 0.001, spec, 0.5) == [0, 2, 3]
    assert escalate(scores, 0.0031, 0.001, spec, 0.5) == [0, 2]
    assert escalate(scores, 0.0, 0.001, spec, 1.0) == []
    assert escalate(scores, 1.0, 0.001, spec, 0.0) == []
    assert escalate([np.array([1], np.float32)], 1.0, 0.001, spec, 1.0) == []


def test_the_strong_rankers_cost_follows_what_is_observed() -> None:
    cost = StrongCost(CascadeSpec(levels=(0.0, -1.0), strong_ms=2))
    assert cost.seconds == 0.002
    for _ in range(100):
        cost.observe(4, 0.04)
    assert cost.seconds == pytest.approx(0.01, rel=1e-3)
    cost.observe(0, 1.0)
    assert cost.seconds == pytest.approx(0.01, rel=1e-3)


@pytest.fixture(scope="module")
def listwise(lists: Lists) -> Listwise:
    return Transformer(ListSettings(epochs=1, batch=32), members=1).fit(lists).modules[0]


@pytest.fixture(scope="module")
def exported(listwise: Listwise, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("listwise") / "strong_ranker.onnx"
    export_listwise(listwise, DIMENSION, path)
    return path


def test_the_strong_ranker_scores_in_onnx_as_in_torch(listwise: Listwise, exported: Path, lists: Lists) -> None:
    assert check_listwise(listwise, DIMENSION, exported, seed=1) <= 1e-4
    scores = onnx_scores(exported.read_bytes(), lists)
    np.testing.assert_allclose(scores[lists.present], score(listwise, lists)[lists.present], atol=1e-4)
    other = Listwise(listwise.standard.mean, listwise.standard.scale, PLACES).eval()
    with pytest.raises(GateFailed, match="parity"):
        check_listwise(other, DIMENSION, exported, seed=1)


def test_padding_does_not_change_what_the_strong_ranker_thinks(exported: Path, lists: Lists) -> None:
    at = int(lists.present.sum(axis=1).argmin())
    size = int(lists.present[at].sum())
    assert size < CANDIDATES
    model = exported.read_bytes()
    padded = onnx_scores(model, lists.take(np.array([at])))[0, :size]
    session = cpu_session(model, 1)
    one = lists.take(np.array([at]))
    cut = {
        spec.name: getattr(one, spec.name)[:, :size]
        for spec in listwise_inputs(DIMENSION)
        if spec.name in {"features", "candidate_vectors"}
    }
    context = {name: getattr(one, name) for name in ("context_vectors", "context_types", "context_mask")}
    given = {**cut, **context, "candidate_mask": one.present[:, :size]}
    wide = {name: each.astype(np.float32) if each.dtype == np.float16 else each for name, each in given.items()}
    (bare,) = session.run(None, wide)
    np.testing.assert_allclose(bare[0], padded, atol=1e-4)
