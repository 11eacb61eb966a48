from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from indexer.contract.blend import Blend, BlendSpec
from indexer.contract.candidates import CANDIDATE_MASK, FEATURES, INPUTS, OUTPUT, Shelf, Shopper, ranker_tensors
from indexer.contract.history import RepurchaseSpec
from indexer.contract.neighbours import NeighbourSpec
from indexer.errors import GateFailed
from indexer.learn.list_training import ListSettings, Trained, score, soft_targets
from indexer.learn.lists import Lists, joined, make_lists
from indexer.learn.questions import questions
from indexer.learn.retrieval import Found, ask
from indexer.learn.student import PARITY, Student, check_student, export_student, fit_student, student_inputs
from tests.learn.shop import DAYS, FIRST_DAY, Shop
from tests.learn.some_lists import CANDIDATES, DIMENSION, PLACES, make_some_lists

SETTINGS = ListSettings(epochs=6, batch=32, rate=5e-3, seed=2)


@pytest.fixture(scope="module")
def past() -> Lists:
    return make_some_lists(300, seed=1)


@pytest.fixture(scope="module")
def later() -> Lists:
    return make_some_lists(120, seed=2)


@pytest.fixture(scope="module")
def trained(past: Lists, later: Lists) -> Trained[Student]:
    return fit_student(past, SETTINGS, check=later)


def test_the_student_learns_from_labels_and_keeps_its_best_epoch(trained: Trained[Student], later: Lists) -> None:
    worth = float(later.ndcg(score(trained.module, later)).mean())
    assert worth > later.ndcg(later.blend_order()).mean() + 0.3
    assert worth == pytest.approx(max(trained.figures))
    assert trained.figures[trained.epochs - 1] == max(trained.figures)


def test_the_student_learns_from_soft_scores_alone(past: Lists, later: Lists) -> None:
    best = past.features[:, :, 0] * np.where(past.present, 1, 0)
    settings = replace(SETTINGS, soft=1.0)
    module = fit_student(past, settings, soft=soft_targets(best.astype(np.float32), past)).module
    told = np.where(later.present, score(module, later), -np.inf).argmax(axis=1)
    true = np.where(later.present, later.features[:, :, 0], -np.inf).argmax(axis=1)
    assert (told == true).mean() > 0.8


def test_the_same_seed_gives_the_same_student_and_labels_of_what_is_scored_are_not_seen(
    past: Lists, later: Lists
) -> None:
    settings = replace(SETTINGS, epochs=1)
    blind = replace(later, positive=np.zeros_like(later.positive))
    first, second = fit_student(past, settings).module, fit_student(past, settings).module
    np.testing.assert_array_equal(score(first, later), score(second, blind))


def test_a_turned_vector_space_changes_no_score(trained: Trained[Student], later: Lists) -> None:
    turn = np.linalg.qr(np.random.default_rng(3).standard_normal((DIMENSION, DIMENSION)))[0]
    turned = replace(
        later,
        candidate_vectors=(later.candidate_vectors @ turn).astype(np.float32),
        context_vectors=(later.context_vectors @ turn).astype(np.float32),
    )
    np.testing.assert_allclose(score(trained.module, turned), score(trained.module, later), atol=1e-4)


def test_padding_and_other_candidates_change_no_score(trained: Trained[Student], later: Lists) -> None:
    whole = score(trained.module, later)
    fewer = replace(
        later, features=later.features[:, :5], rows=later.rows[:, :5], present=later.present[:, :5],
        candidate_vectors=later.candidate_vectors[:, :5],
    )  # fmt: skip
    np.testing.assert_allclose(score(trained.module, fewer), whole[:, :5], atol=1e-5)
    one = later.take(np.array([int(later.context_mask.sum(axis=1).argmin())]))
    assert np.isfinite(score(trained.module, one)).all()


def test_without_a_positive_there_is_nothing_to_learn(past: Lists) -> None:
    with pytest.raises(ValueError, match="no question has a target"):
        fit_student(replace(past, positive=np.zeros_like(past.positive)), SETTINGS)


@pytest.fixture(scope="module")
def exported(trained: Trained[Student], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("student") / "ranker.onnx"
    export_student(trained.module, DIMENSION, path)
    return path


def test_onnx_gives_the_students_scores(trained: Trained[Student], exported: Path) -> None:
    assert check_student(trained.module, DIMENSION, exported, seed=1) <= PARITY


def test_onnx_takes_what_the_manifest_declares(exported: Path) -> None:
    session = onnxruntime.InferenceSession(exported.read_bytes(), providers=["CPUExecutionProvider"])
    declared = {spec.name: (spec.dtype, list(spec.shape)) for spec in student_inputs(DIMENSION)}
    names = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}
    assert {each.name: (names[each.type], each.shape) for each in session.get_inputs()} == declared
    assert [each.name for each in session.get_outputs()] == [OUTPUT]


def test_a_model_that_differs_from_its_original_is_refused(trained: Trained[Student], exported: Path) -> None:
    other = Student(trained.module.standard.mean, trained.module.standard.scale, PLACES).eval()
    with pytest.raises(GateFailed, match="parity"):
        check_student(other, DIMENSION, exported, seed=1)


def test_a_model_with_scores_that_are_not_finite_is_refused(
    trained: Trained[Student], exported: Path, tmp_path: Path
) -> None:
    model = onnx.load(exported)
    (mean,) = [each for each in model.graph.initializer if each.name == "standard.mean"]
    mean.CopyFrom(numpy_helper.from_array(np.full(len(FEATURES), np.nan, np.float32), mean.name))
    onnx.save(model, tmp_path / "broken.onnx")
    with pytest.raises(GateFailed, match="no_nan"):
        check_student(trained.module, DIMENSION, tmp_path / "broken.onnx", seed=1)


def first(whole: Blend) -> Blend:
    return Blend(whole.rows[:CANDIDATES], whole.scores[:CANDIDATES], whole.sources[:CANDIDATES])


def test_training_and_serving_make_the_same_inputs(shop: Shop) -> None:
    start = FIRST_DAY + 0.8 * DAYS
    random = np.random.default_rng(6)
    items = shop.log.n_items
    shelf = Shelf(
        vectors=random.standard_normal((items, DIMENSION)).astype(np.float16),
        neighbours=random.integers(0, items, (items, 5)).astype(np.int32),
        similarities=random.uniform(0, 1, (items, 5)).astype(np.float16),
        price=random.uniform(1, 9, items).astype(np.float32),
        category=(np.arange(items) % 7).astype(np.int32),
        popularity=random.uniform(0, 1, items).astype(np.float32),
        near=NeighbourSpec(),
        repurchase=RepurchaseSpec(),
    )
    asked = ask(questions(shop.log, start, start + DAYS, known=True, seed=1, limit=40), shop.log, 50)
    ann, near, again = (random.permuted(np.tile(np.arange(items, dtype=np.int32), (40, 1)), axis=1) for _ in range(3))
    vectors = random.standard_normal((40, DIMENSION)).astype(np.float32)
    none = near[0, :0]
    found = [
        Found(each.question.context.rows, ann[at, :9], near[at, :9], again[at, :9], none, vectors[at])
        for at, each in enumerate(asked)
    ]
    spec = BlendSpec()
    lists = make_lists(asked, found, shelf, spec, depth=CANDIDATES, places=PLACES)
    assert lists.answerable().any()
    for at, (each, lone) in enumerate(zip(asked, found, strict=True)):
        shopper = Shopper(each.question.context, each.history, each.question.day, lone.vector)
        served = ranker_tensors(shelf, [shopper], [first(lone.blend(spec))], PLACES)
        for name in INPUTS:
            ours = getattr(lists, name)[at][: served[name].shape[1]]
            # A product of matrices may be rounded otherwise in other company.
            np.testing.assert_allclose(ours.astype(np.float32), served[name][0].astype(np.float32), atol=1e-6)
        assert (lists.rows[at][lists.positive[at]] >= 0).all()
        np.testing.assert_array_equal(lists.present[at][: len(served[CANDIDATE_MASK][0])], served[CANDIDATE_MASK][0])
        known = lists.context_rows[at][lists.context_mask[at]]
        np.testing.assert_array_equal(shelf.vectors[known], lists.context_vectors[at][lists.context_mask[at]])
    assert len(joined([lists, lists])) == 2 * len(lists)
