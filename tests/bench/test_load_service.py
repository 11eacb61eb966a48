"""`feedline bench load` on a real service: one that runs, and one of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services import cli
from services.bench.load.arrivals import Step
from services.bench.load.bench import LoadOptions, load
from services.bench.load.mix import Mix
from services.bench.load.service import environment_of, pinned
from services.bench.load.shop import of_snapshots
from services.bench.load.usage import descendants, usage_of
from services.errors import StartError
from services.feed.app import FeedApp, open_app
from tests.feed.conftest import settings_for
from tests.snapshots import Shop, publish_shop
from tests.waiting import until


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one published snapshot of 1,000 items; rows 3 and 10 are hidden, 900..999 are north only."""
    root = tmp_path_factory.mktemp("load") / "snapshots"
    publish_shop(root, Shop(hidden=frozenset({3, 10}), regional=frozenset(range(900, 1000))))
    return root


@pytest.fixture
async def app(tmp_path: Path, snapshots: Path) -> AsyncIterator[FeedApp]:
    """The service over `snapshots`."""
    async with open_app(settings_for(tmp_path, snapshots={"folder": snapshots})) as running:
        yield running


def test_items_of_a_snapshot_come_by_popularity_and_only_available_ones(snapshots: Path) -> None:
    found = of_snapshots(snapshots)
    assert found.ids[:4].to_pylist() == ["i0", "i1", "i2", "i4"]
    assert (len(found), found.regions, found.synthetic) == (998, ("north",), False)


def test_a_folder_without_a_snapshot_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="no snapshot is published"):
        of_snapshots(tmp_path)


def test_what_a_process_uses_is_read_with_its_children() -> None:
    used = usage_of(os.getpid())
    assert used.cpu_s > 0
    assert used.tree_rss >= used.rss >= used.rss_anon > 0
    assert used.rss_peak >= used.rss_file > 0


def test_a_process_that_is_not_there_is_said() -> None:
    with pytest.raises(ProcessLookupError, match="no such process"):
        usage_of(2**22 + 1)


def test_settings_become_environment_variables() -> None:
    assert environment_of(["cache.enabled=false", "FEEDLINE_STATE__URL=redis://a=b"]) == {
        "FEEDLINE_CACHE__ENABLED": "false",
        "FEEDLINE_STATE__URL": "redis://a=b",
    }
    with pytest.raises(StartError, match=r"section\.key=value"):
        environment_of(["enabled=false"])


def test_a_cpu_that_is_not_there_is_said() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(StartError, match="CPU 4000: this process cannot run there"), pinned(4000):
        pass
    assert os.sched_getaffinity(0) == before


async def test_a_running_service_is_measured_with_the_items_of_its_console(app: FeedApp, tmp_path: Path) -> None:
    measured = await load(
        LoadOptions(
            snapshots=tmp_path,
            target=f"127.0.0.1:{app.grpc_port}",
            console=f"http://127.0.0.1:{app.console_port}",
            pid=os.getpid(),
            mix=Mix(histories=0, cold=0, deep=0.3),
            steps=(Step(40, 1), Step(200, 0.5, spike=True), Step(40, 1)),
            warm_up_s=0.3,
            deadline_ms=5000,
            budget_ms=5000,
        ),
        "feedline bench load",
    )
    first, spike, last = measured["steps"]
    assert (first["spike"], spike["spike"], last["spike"]) == (False, True, False)
    for step in measured["steps"]:
        assert step["offered"] == step["answered"] + step["generator_dropped"] > 0
        assert step["service"]["cpu_s"] > 0
        assert step["good"] + step["generator_dropped"] + round((step["fallback_share"] or 0) * step["answered"]) >= 1
    assert first["rung_share"]["RANKED"] > 0.5
    assert (measured["snapshot_id"], measured["items"]) != ("", 0)
    assert measured["next_pages_asked_as_first"] < sum(step["offered"] for step in measured["steps"]) * 0.3


def test_the_command_starts_a_service_of_its_own_and_draws(snapshots: Path, tmp_path: Path) -> None:
    plot = tmp_path / "load.svg"
    done = CliRunner().invoke(
        cli.app,
        [
            "bench", "load", "--snapshots", str(snapshots), "--steps", "30:0.7,60:0.7", "--warm-up", "0.2",
            "--set", "cache.enabled=false", "--deadline-ms", "5000", "--plot", str(plot), "--json",
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    measured = json.loads(done.stdout)
    assert measured["users_with_a_history"] == 200
    assert measured["settings"] == {"FEEDLINE_CACHE__ENABLED": "false"}
    assert measured["synthetic"] is False
    for step in measured["steps"]:
        assert step["non_ok"] == 0
        assert set(step["cache_share"]) <= {"OFF", "UNUSED"}
        assert step["goodput_cached_qps"] == 0
        assert step["service"]["rss"] > 50 * 2**20
    drawn = plot.read_text()
    for heading in ("Goodput", "Fallback and errors", "Latency from the intended send", "Rates over time"):
        assert heading in drawn
    assert "<script" not in drawn
    assert "NaN" not in drawn


def test_a_plateau_is_searched_for(snapshots: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = CliRunner().invoke(
        cli.app,
        [
            "bench", "load", "--snapshots", str(snapshots), "--find-plateau", "--sweep-from", "20",
            "--sweep-growth", "8", "--sweep-seconds", "0.4", "--warm-up", "0", "--budget-ms", "0",
            "--deadline-ms", "5000",
        ],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "plateau: 0.0 complete answers a second" in done.stdout
    assert "offered/s" in done.stdout


def test_nobody_at_the_target_is_said(snapshots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.bench.load.client._CONNECT_S", 0.1)
    done = CliRunner().invoke(
        cli.app, ["bench", "load", "--target", "127.0.0.1:1", "--snapshots", str(snapshots), "--steps", "1:1"]
    )
    assert done.exit_code == 2
    assert "127.0.0.1:1: nobody answers there" in done.stderr


async def test_sigterm_ends_the_service_with_the_command(snapshots: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli", "bench", "load", "--snapshots", str(snapshots), "--steps", "5:600",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        await until(lambda: len(list(descendants(process.pid))) >= 2, is_=True, within_s=60)
        started = list(descendants(process.pid))
        process.terminate()
        async with asyncio.timeout(60):
            assert await process.wait() == 130
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    await until(lambda: [pid for pid in started if Path(f"/proc/{pid}").exists()], is_=[])
