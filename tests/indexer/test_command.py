"""`feedline index` and `feedline events` as typed: what is printed, what is refused, and a night after a day."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from indexer.contract.snapshot import current_id, read_manifest
from services.cli import app
from services.domain import RecordedEvents, ShopEvent
from services.settings import State
from services.state import state_server
from tests.feed.state import NOW_MS, batch, event, state_at
from tests.indexer.shop import plain_events, plain_items, write

runner = CliRunner()


class House:
    """A user's folder with a settings file, and `feedline` typed in it."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.snapshots = folder / "snapshots"
        self.state = folder / "valkey"
        self.config = folder / "feedline.toml"
        self.config.write_text(
            f'snapshots.folder = "{self.snapshots}"\nstate.folder = "{self.state}"\n'
            f'index.encoder.model = "{model}"\nindex.vector_store = "{folder / "vectors"}"\nindex.threads = 1\n'
        )

    def feedline(self, *arguments: str | Path) -> Result:
        """One command with the settings file."""
        return runner.invoke(app, [*map(str, arguments), "--config", str(self.config)])

    def build(self, events: Path, *more: str) -> dict[str, Any]:
        """`index build --json` of three items."""
        items = write(self.folder / "items.csv", plain_items(3))
        paths: list[str | Path] = ["--catalogue", items, "--events", events, "--out", self.snapshots]
        result = self.feedline("index", "build", *paths, "--json", *more)
        assert result.exit_code == 0, result.output
        summary: dict[str, Any] = json.loads(result.stdout)
        return summary

    def record(self, recorded: RecordedEvents) -> None:
        """Stores events as the service does, then stops the server."""

        async def stored() -> None:
            async with state_server(State(folder=self.state)) as url, state_at(url) as state:
                await state.stream.record(recorded)

        asyncio.run(stored())


@pytest.fixture
def house(tmp_path: Path, model: Path) -> House:
    return House(tmp_path, model)


def test_what_the_service_recorded_counts_the_next_night_whatever_the_shops_files_are_like(house: House) -> None:
    with house.config.open("a") as config:
        config.write('index.events.columns = {item_id = "sku", session_id = "basket", occurred_at = "at"}\n')
        config.write('index.events.type_names = {bought = "purchase"}\n')
    events = house.folder / "events"
    assert "no file: nothing was recorded" in house.feedline("events", "export", "--out", events).stdout
    assert house.build(events)["events"] == 0, "the first night has no events yet"

    write(events / "till.csv", [{"sku": "i0", "basket": "b", "at": "2026-05-01", "type": "bought"}])
    clicked = ShopEvent("e1", "i1", event(1).type, NOW_MS - 100 * 86_400_000, "")
    house.record(batch(clicked))
    assert house.feedline("events", "export", "--out", events).stdout.startswith("1 events -> ")
    summary = house.build(events)
    assert (summary["events"], summary["sessions"], summary["event_bad"]) == (2, 2, 0)


@pytest.mark.parametrize("until", ["2026-05-01T12:00:00+02:00", "2026-05-01T10:00:00Z", "2026-05-01T10:00:00"])
def test_until_is_an_instant_and_utc_where_it_names_no_zone(house: House, until: str) -> None:
    house.build(write(house.folder / "events.jsonl", []), "--until", until)
    identity = current_id(house.snapshots)
    assert identity is not None
    assert read_manifest(house.snapshots / identity).until == "2026-05-01T10:00:00+00:00"


def test_snapshots_are_listed_verified_and_rolled_back(house: House) -> None:
    assert "nothing is published" in house.feedline("index", "verify").stderr
    events = write(house.folder / "events.jsonl", plain_events(3, 5))
    first, second = (house.build(events)["snapshot"] for _ in range(2))
    listed = json.loads(house.feedline("index", "list", "--json").stdout)
    assert [(row["id"], row["parent"], row["current"]) for row in listed] == [
        (second, first, True),
        (first, None, False),
    ]
    assert house.feedline("index", "verify").stdout.startswith(f"{second}: 10 files whole, 3 items, 8 golden queries")
    assert house.feedline("index", "rollback").stdout == f"serving {first} from now on\n"
    assert current_id(house.snapshots) == first
    nothing_left = house.feedline("index", "rollback")
    assert (nothing_left.exit_code, nothing_left.stdout) == (2, "")
    assert "has no parent that is still kept" in nothing_left.stderr
    assert house.feedline("index", "rollback", "--to", second).exit_code == 0
    index = house.snapshots / second / "index.faiss"
    index.chmod(0o644)
    index.write_bytes(b"x")
    verified = house.feedline("index", "verify")
    assert verified.exit_code == 2
    assert f"snapshot {second} refused: index.faiss: has 1 bytes" in verified.stderr


def test_a_folder_that_is_not_there_is_said_and_not_an_empty_list(house: House) -> None:
    listed = house.feedline("index", "list")
    assert (listed.exit_code, listed.stderr) == (2, f"feedline: {house.snapshots}: no such folder\n")


def test_what_cannot_be_built_is_one_line_and_exit_code_2(house: House) -> None:
    events = write(house.folder / "events.jsonl", [])
    result = house.feedline("index", "build", "--catalogue", "absent.csv", "--events", events, "--out", house.snapshots)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.splitlines()[-1] == "feedline: absent.csv: no such file or folder"
    shutil.rmtree(house.snapshots)


@pytest.mark.parametrize(
    "command",
    ["", "serve", "request", "demo", "settings", "events", "events export", "events load", "index"]
    + [f"index {name}" for name in ("build", "list", "verify", "rollback")],
)
def test_every_command_explains_itself(command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.stdout
