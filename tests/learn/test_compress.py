"""Smaller rankers: as many bits as the floor allows, and never a score that is not finite."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import count

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from indexer.contract.candidates import INPUTS, OUTPUT
from indexer.errors import GateFailed
from indexer.learn.compress import VARIANTS, Compressed, Measured, choose, dollars_per_million, measure, variants
from indexer.learn.intervals import Interval
from indexer.learn.list_training import ListSettings, ranker_inputs, score
from indexer.learn.lists import Lists
from indexer.learn.onnx_file import cpu_session
from indexer.learn.onnx_ranker import onnx_scores
from indexer.learn.student import Student, fit_student, student_inputs
from tests.learn.some_lists import DIMENSION, make_some_lists

SETTINGS = ListSettings(epochs=4, batch=32, rate=5e-3, seed=2)
INT8 = ("int8", "int8_trained")


@pytest.fixture(scope="module")
def past() -> Lists:
    return make_some_lists(300, seed=1)


@pytest.fixture(scope="module")
def later() -> Lists:
    return make_some_lists(120, seed=2)


@pytest.fixture(scope="module")
def student(past: Lists) -> Student:
    return fit_student(past, SETTINGS).module


@pytest.fixture(scope="module")
def table(student: Student, past: Lists) -> dict[str, Compressed]:
    return {each.name: each for each in variants(student, DIMENSION, past, SETTINGS)}


def test_every_variant_takes_the_same_inputs_and_ranks_nearly_as_well(
    table: dict[str, Compressed], student: Student, later: Lists
) -> None:
    assert tuple(table) == VARIANTS
    whole = later.ndcg(score(student, later)).mean()
    for each in table.values():
        session = cpu_session(each.model, 1)
        given = {one.name: one.shape for one in session.get_inputs()}
        assert given == {spec.name: list(spec.shape) for spec in student_inputs(DIMENSION)}
        scores = onnx_scores(each.model, later)
        assert np.isfinite(scores).all()
        assert later.ndcg(scores).mean() > whole - (0.1 if each.name.startswith("pruned") else 0.02)


def test_fewer_bits_and_fewer_units_are_fewer_bytes(table: dict[str, Compressed]) -> None:
    sizes = {name: each.size for name, each in table.items()}
    assert max(sizes["fp16"], sizes["int8"], sizes["pruned_by_half"]) < 0.8 * sizes["fp32"]
    assert sizes["pruned_by_half"] < sizes["pruned_by_a_quarter"] < sizes["fp32"]


def test_a_variant_can_be_made_alone_with_the_same_bytes(
    table: dict[str, Compressed], student: Student, past: Lists
) -> None:
    (again,) = variants(student, DIMENSION, past, SETTINGS, wanted=("int8",))
    assert again == table["int8"]


def test_the_student_that_was_compressed_is_left_as_it_was(
    table: dict[str, Compressed], student: Student, later: Lists
) -> None:
    np.testing.assert_allclose(onnx_scores(table["fp32"].model, later), score(student, later), atol=1e-4)


@pytest.mark.parametrize("name", INT8)
def test_int8_weights_take_seven_bits_so_that_no_cpu_saturates(table: dict[str, Compressed], name: str) -> None:
    model = onnx.load_from_string(table[name].model)
    weights = [numpy_helper.to_array(one) for one in model.graph.initializer]
    coarse = [one for one in weights if one.dtype == np.int8 and one.ndim == 2]
    assert len(coarse) == 4
    assert all(np.abs(one.astype(np.int32)).max() <= 64 for one in coarse)
    assert 255 * 64 * 2 < 2**15


@pytest.mark.parametrize("name", INT8)
def test_int8_ranks_are_those_of_exact_arithmetic(table: dict[str, Compressed], later: Lists, name: str) -> None:
    golden = later.take(np.arange(16))
    inputs = {each: value for each, value in ranker_inputs(golden).items() if each in INPUTS}
    evaluator = ReferenceEvaluator(onnx.load_from_string(table[name].model))
    exact = np.asarray(next(iter(evaluator.run([OUTPUT], inputs))), np.float32)
    ours = onnx_scores(table[name].model, golden)
    np.testing.assert_allclose(ours, exact, atol=0.05)  # one step of a rounding that fell the other way
    near = np.isclose(ours, exact, atol=1e-3)
    assert near.mean() > 0.9


@pytest.mark.parametrize("name", ["fp32", "fp16", *INT8])
def test_a_question_is_scored_alike_alone_and_among_others(
    table: dict[str, Compressed], later: Lists, name: str
) -> None:
    whole = onnx_scores(table[name].model, later)
    for at in range(3):
        alone = onnx_scores(table[name].model, later.take(np.array([at])))
        np.testing.assert_allclose(alone[0], whole[at], atol=2e-2 if name == "fp16" else 1e-4)


def test_training_for_int8_leaves_weights_on_the_grid(table: dict[str, Compressed]) -> None:
    model = onnx.load_from_string(table["int8_trained"].model)
    coarse = [numpy_helper.to_array(one) for one in model.graph.initializer]
    coarse = [one for one in coarse if one.dtype == np.int8 and one.ndim == 2]
    assert any(np.abs(one).max(axis=0).min() == 64 for one in coarse)


def test_the_table_tells_bytes_times_loss_and_price(table: dict[str, Compressed], later: Lists) -> None:
    ticks = count()
    rows = measure(
        [table["fp32"], table["int8"]], later, price_per_vcpu_hour=0.036, assembly_s=0.5, seed=1,
        clock=lambda: next(ticks) * 0.032, cpu=lambda: next(ticks) * 0.064,
    )  # fmt: skip
    first, second = rows
    assert (first.name, first.size, first.fault) == ("fp32", table["fp32"].size, "")
    assert first.loss == Interval(0, 0, 0)
    assert second.loss.low <= second.loss.mean <= second.loss.high
    assert [first.p50_ms, first.batch_p99_ms] == pytest.approx([32, 32])
    assert first.throughput == pytest.approx(1 / 0.502)
    assert first.dollars_per_million == pytest.approx(0.502 * 10)
    assert first.as_dict()["loss"] == {"mean": 0, "low": 0, "high": 0}
    with pytest.raises(ValueError, match="at least one question"):
        measure([table["fp32"]], later.take(np.arange(0)), price_per_vcpu_hour=1, assembly_s=0, seed=1)


def test_a_score_that_is_not_finite_disqualifies(table: dict[str, Compressed], later: Lists) -> None:
    model = onnx.load_from_string(table["fp32"].model)
    (bias,) = [one for one in model.graph.initializer if one.name == "plain.bias"]
    bias.CopyFrom(numpy_helper.from_array(np.array([np.nan], np.float32), bias.name))
    broken = Compressed("broken", model.SerializeToString())
    rows = measure([table["fp32"], broken], later, price_per_vcpu_hour=0.04, assembly_s=0, seed=1)
    assert [row.fault for row in rows] == ["", "gave a score that is not finite"]
    assert choose([rows[0], replace(rows[1], dollars_per_million=0.0)]).name == "fp32"
    with pytest.raises(GateFailed, match="broken gave a score that is not finite"):
        choose(rows[1:])


def row(name: str, dollars: float, loss: float) -> Measured:
    return Measured(name, 1, 1, 1, 1, 1, 1, dollars, 0.2, Interval(loss, loss, loss))


def test_the_cheapest_above_the_floor_is_chosen() -> None:
    rows = [row("fp32", 1.0, 0.0), row("int8", 0.8, 0.004), row("pruned", 0.5, 0.006)]
    assert choose(rows).name == "int8"
    assert choose(rows, floor=0.01).name == "pruned"
    assert choose(rows, floor=0.0).name == "fp32"


def test_what_saves_next_to_nothing_does_not_take_the_place_of_more_bits() -> None:
    assert choose([row("fp32", 1.0, 0.0), row("int8", 0.96, 0.001)]).name == "fp32"


def test_when_nothing_is_above_the_floor_the_build_stops_and_names_the_figures() -> None:
    with pytest.raises(GateFailed, match=r"at most 0.50% of NDCG@10: int8 loses 1.00%, pruned loses nan%"):
        choose([row("int8", 1.0, 0.01), row("pruned", 0.1, math.nan)])


def test_a_million_requests_of_a_millisecond_cost_a_quarter_of_an_hour() -> None:
    assert dollars_per_million(1e-3, 0.04) == pytest.approx(0.04 * 1000 / 3600)
