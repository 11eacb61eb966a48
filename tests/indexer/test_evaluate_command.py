"""`feedline index evaluate` as typed: a snapshot built until the window, served to its sessions, measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from indexer.contract.items import Rows
from indexer.contract.purchases import UserPurchases
from indexer.contract.snapshot import Snapshot, open_snapshot
from indexer.contract.visits import Answered, Visit
from indexer.errors import InputError
from indexer.progress import Silent, Stages
from indexer.settings import IndexSettings
from indexer.trial import Terms, rehearsed, trial
from services.cli import app
from services.slates import RULES
from tests.indexer.shop import write
from tests.snapshots import Shop, publish_shop

ITEMS = 60
START = "2026-05-22T00:00:00"


class House:
    """A folder with a catalogue, two months of baskets of 20 users, and `feedline index evaluate` typed in it."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.config = folder / "feedline.toml"
        self.config.write_text(
            f'index.encoder.model = "{model}"\nindex.vector_store = "{folder / "vectors"}"\nindex.threads = 1\n'
        )
        items = [{"item_id": f"i{at}", "title": f"Item {at % 7} of kind {at % 5}"} for at in range(ITEMS)]
        self.items = write(folder / "items.csv", items)
        self.events = write(folder / "events.csv", self.baskets())

    @staticmethod
    def baskets() -> list[dict[str, Any]]:
        """Each user buys of ten items of the user's own, again and again."""
        random = np.random.default_rng(1)
        out = []
        for basket in range(300):
            user = int(random.integers(20))
            for row in random.choice(10, 4, replace=False):
                day = np.datetime64("2026-04-01T08:00") + np.timedelta64(basket * 60 * 24 // 5, "m")
                out.append(
                    {"session_id": f"b{basket}", "user_id": f"u{user}", "item_id": f"i{(3 * user + row) % ITEMS}"}
                    | {"occurred_at": f"{day}Z"}
                )
        return out

    def _arguments(self, more: tuple[str | Path, ...]) -> list[str]:
        paths = ["--events", self.events, "--start", START, "--config", self.config]
        return ["index", "evaluate", *map(str, (*paths, *more))]

    def evaluate(self, *more: str | Path) -> Result:
        """The command in this process: for what is refused before a service starts, which sets logging up for good."""
        return CliRunner().invoke(app, self._arguments(more))

    def typed(self, *more: str | Path) -> subprocess.CompletedProcess[str]:
        """The command in a process of its own."""
        command = [sys.executable, "-m", "services.cli", *self._arguments(more)]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, model: Path) -> House:
    return House(tmp_path_factory.mktemp("house"), model)


def test_the_whole_pipeline_is_built_served_and_measured_beside_its_baselines(house: House) -> None:
    out = house.folder / "report"
    result = house.typed("--catalogue", house.items, "--questions", "25", "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    every = {
        "two_stage",
        "heuristic",
        "item_knn_20",
        "item_knn_100",
        "vsknn",
        "tifu_knn",
        "popularity",
        "towers",
        "blend",
    }
    for section in ("session", "next_basket"):
        assert every <= set(document[section])
        assert document["questions"][section] == 25
        ours = document[section]["two_stage"]
        assert ours["interval"]["low"] <= ours["ndcg_at_10"] <= ours["interval"]["high"]
        assert ours["ndcg_at_10"] > document[section]["popularity"]["ndcg_at_10"], "users buy what they bought before"
    assert document["degraded_pages"] == 0
    assert document["rungs"] == {"RANKED": 50}
    assert document["served_vs_offline_max_difference"] <= 1e-4
    assert "teacher" not in document["session"], "too few baskets to learn from"
    assert set(document["slate"]) == set(RULES)
    for cost in document["slate"].values():
        assert cost["difference"]["low"] <= cost["difference"]["mean"] <= cost["difference"]["high"]
        assert cost["ndcg_at_10"] == pytest.approx(ours_alone(document) + cost["difference"]["mean"], abs=1e-4)
    assert document["windows"]["start"] == f"{START}+00:00"
    assert json.loads((out / "report.json").read_text())["evaluation"] == document
    page = (out / "report.html").read_text()
    assert document["snapshot"] in page
    assert "<svg" in page


def test_teacher_and_students_are_taken_from_the_build_with_the_window_of_the_build() -> None:
    figures = {"ndcg_at_10": 0.3, "interval": {"mean": 0.3, "low": 0.2, "high": 0.4}}
    session = dict.fromkeys(("blend", "teacher", "student_labels", "student_distilled", "two_stage"), figures)
    windows = {"train": "2026-01-01", "validate": "2026-02-01", "evaluate": "2026-03-01", "end": "2026-04-01"}
    expected = {**figures, "window": {"start": "2026-03-01", "stop": "2026-04-01"}}
    names = ("teacher", "student_labels", "student_distilled")
    assert rehearsed({"windows": windows, "session": session}) == dict.fromkeys(names, expected)
    assert rehearsed({"why": "nothing was learned"}) == {}


def ours_alone(document: dict[str, Any]) -> float:
    return float(document["session"]["two_stage"]["ndcg_at_10"])


def test_either_a_catalogue_or_a_folder_of_snapshots_is_expected(house: House) -> None:
    for more in ((), ("--catalogue", house.items, "--snapshots", house.folder)):
        result = house.evaluate(*more)
        assert result.exit_code == 2
        assert "--catalogue and --snapshots: exactly one of the two is expected" in result.output


def shop_until(folder: Path, moment: str | None) -> Snapshot:
    """A snapshot of the house's items that knows of events up to a moment."""
    name = publish_shop(folder, Shop(count=ITEMS))
    snapshot = open_snapshot(folder / name)
    return replace(snapshot, manifest=snapshot.manifest.model_copy(update={"until": moment}))


def tried(house: House, snapshot: Snapshot, stop: datetime | None = None) -> dict[str, Any]:
    def serve(
        known: Sequence[UserPurchases], visits: Sequence[Visit], advance: Callable[[int], None]
    ) -> Sequence[Answered]:
        raise AssertionError("nothing is to be served")

    def first_pages(*given: object) -> dict[str, list[Rows]]:
        raise AssertionError("nothing was served")

    terms = Terms(datetime.fromisoformat(f"{START}+00:00"), stop, None, 25, "shared", 256)
    settings, stages = IndexSettings(threads=1), Stages(Silent())
    return trial(settings, snapshot, house.events, terms, serve, first_pages, stages, datetime.now(UTC))


@pytest.mark.parametrize(
    ("moment", "why"),
    [
        (f"{START}+00:00", f"knows of events up to {START}"),
        ("2026-06-30T00:00:00+00:00", "knows of events up to 2026-06-30"),
        (None, "does not say what events it knows"),
    ],
)
def test_a_snapshot_that_may_know_of_the_window_is_refused(
    house: House, tmp_path: Path, moment: str | None, why: str
) -> None:
    with pytest.raises(InputError, match=f"{re.escape(why)}.*: one built --until {re.escape(START)}"):
        tried(house, shop_until(tmp_path, moment))


def test_a_window_without_a_session_says_so(house: House, tmp_path: Path) -> None:
    snapshot = shop_until(tmp_path, "2026-05-21T23:59:59+00:00")
    with pytest.raises(InputError, match="0 sessions of returning users after it"):
        tried(house, snapshot, datetime.fromisoformat(f"{START}+00:00"))
