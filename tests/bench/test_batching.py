"""Which batch is named and what is advised; the command on a small snapshot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from services.bench.batching import Advice, Point, advise, budget_of, measure
from services.bench.questions import questions
from services.cli import app
from services.feed.loaded import Loaded
from services.feed.rerank import Scored
from services.feed.work import Work
from services.settings import Settings
from tests.clock import ManualClock
from tests.feed.bench import answer_to
from tests.feed.shops import open_shop, question
from tests.snapshots import Shop, publish_shop


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return open_shop(tmp_path_factory.mktemp("snapshots"), Shop(count=40, dimension=4, hidden=frozenset(range(5))))


def point(size: int, per_second: float, p99_ms: float) -> Point:
    return Point(size, 100, per_second, p99_ms / 2, p99_ms, 1.0, 1.0)


POINTS = [point(1, 100, 12), point(4, 180, 25), point(8, 199, 45), point(16, 200, 85), point(32, 210, 160)]


def test_the_largest_batch_is_the_one_of_which_two_keep_the_budget() -> None:
    advice = advise(POINTS, 170, pairs=550)
    assert advice == Advice(170, largest=16, max_batch=8, max_pairs=4400, max_in_flight=24)  # 199/s x (170 - 45) ms


def test_under_a_wide_budget_the_batch_with_the_best_throughput_is_advised() -> None:
    assert advise(POINTS, 1000, pairs=550).max_batch == 32


def test_where_no_batch_keeps_the_budget_that_is_said() -> None:
    assert advise(POINTS, 20, pairs=550) == Advice(20, largest=0, max_batch=1, max_pairs=1000, max_in_flight=1)


def test_what_is_advised_is_a_setting(loaded: Loaded) -> None:
    for budget in (1, 30, 60, 200, 1000):
        advice = advise(POINTS, budget, Work(question(loaded, 1)).pairs)
        given = {name: getattr(advice, name) for name in ("max_batch", "max_pairs", "max_in_flight")}
        assert Settings.model_validate({"scoring": given}).scoring.max_pairs == advice.max_pairs


def test_the_budget_is_that_of_scoring_less_what_is_kept_for_the_fallback() -> None:
    assert budget_of(Settings()) == 137


def test_sizes_take_turns_over_whole_batches_of_the_same_questions(loaded: Loaded) -> None:
    clock = ManualClock()
    sizes: list[int] = []

    def run(works: Sequence[Work]) -> list[Scored]:
        sizes.append(len(works))
        clock.advance(0.002 + 0.001 * len(works))
        return [answer_to(work) for work in works]

    points = measure([Work(question(loaded, row)) for row in range(10)], (1, 4), 2, run, clock)
    assert sizes == [1, 4, *([1] * 10 + [4] * 2) * 2]
    assert [(each.size, each.batches, each.p99_ms) for each in points] == [(1, 20, 3.0), (4, 4, 6.0)]
    assert [each.per_second for each in points] == pytest.approx([1000 / 3, 2000 / 3], rel=1e-4)


def test_questions_are_sessions_of_the_snapshot_and_the_same_for_a_seed(loaded: Loaded) -> None:
    asked = questions(loaded, 200, seed=3)
    assert [each.context.rows.tolist() for each in asked] == [
        each.context.rows.tolist() for each in questions(loaded, 200, seed=3)
    ]
    lengths = [len(each.context) for each in asked]
    assert min(lengths) == 1
    assert 5 <= max(lengths) <= 10
    firsts = np.array([each.context.rows[-1] for each in asked])
    assert np.median(firsts) < loaded.items.count / 2  # Item i is the (i+1)-th most popular.


def test_the_command_prints_one_document_and_draws_a_picture(tmp_path: Path) -> None:
    publish_shop(tmp_path / "snapshots", Shop(count=200, dimension=8, tower=True))
    picture = tmp_path / "batching.svg"
    arguments = ["--snapshots", str(tmp_path / "snapshots"), "--questions", "64", "--rounds", "1"]
    result = CliRunner().invoke(app, ["bench", "batching", *arguments, "--json", "--plot", str(picture)])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [each["size"] for each in found["points"]] == [1, 2, 4, 8, 16, 32, 64]
    assert found["items"] == 200
    assert found["advice"]["max_batch"] in {1, 2, 4, 8, 16, 32, 64}
    assert picture.read_text(encoding="utf-8").startswith("<svg xmlns=")
    assert "twice the p99 of a batch" in picture.read_text(encoding="utf-8")


def test_a_folder_without_a_snapshot_is_said(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "batching", "--snapshots", str(tmp_path)])
    assert result.exit_code == 2
    assert "nothing is published" in result.output
