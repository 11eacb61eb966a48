"""What a person reads on a terminal: names are printed as they are, whatever they hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from protos import feed_pb2
from services.demo.story import Story
from services.request import print_page
from services.snapshots import table

NAME = "[/bold] [red]tea"


def test_an_item_id(capsys: pytest.CaptureFixture[str]) -> None:
    print_page(feed_pb2.GetFeedResponse(items=[feed_pb2.FeedItem(item_id=NAME, rank=1)]))
    assert NAME in capsys.readouterr().out


def test_the_title_in_a_step_of_the_demo(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out, Story(Console(file=out, width=80)).step(NAME, "why"):
        pass
    assert NAME in (tmp_path / "out").read_text()


def test_the_fault_of_a_snapshot() -> None:
    console = Console(width=200)
    with console.capture() as said:
        console.print(table([{"id": "20260101T000000Z-00000007", "current": True, "error": NAME}]))
    assert NAME in said.get()
