"""What the demo tells: steps with their claims, printed for a person, kept for `--json`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow.parquet as pq
from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protos import feed_pb2
from services.demo.dataset import Dataset

Page = feed_pb2.GetFeedResponse
_PLAIN_WIDTH = 110


class Titles:
    """Title, category and price of every item of the demo's catalogue, by id."""

    def __init__(self, dataset: Dataset) -> None:
        table = pq.read_table(dataset.catalogue, columns=["item_id", "title", "category", "price"])
        columns = [table[name].to_pylist() for name in table.column_names]
        self._of = {item_id: rest for item_id, *rest in zip(*columns, strict=True)}

    def of(self, item_id: str) -> tuple[str, str, str]:
        """Title, category, price; the last two may be empty."""
        title, category, price = self._of[item_id]
        return title, category or "", "" if price is None else f"{price:.2f}"


@dataclass
class Step:
    """One thing that the demo shows. It held when every claim did."""

    name: str
    seconds: float = 0.0
    claims: list[tuple[str, bool]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] | None = None

    @property
    def held(self) -> bool:
        """Whether it showed what it claims."""
        return all(held for _, held in self.claims)


class Story:
    """Prints the steps as they happen, to `console`; `titles` are set once there is a catalogue."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.steps: list[Step] = []
        self.titles: Titles | None = None

    @contextmanager
    def step(self, name: str, why: str) -> Iterator[Step]:
        """A heading and why it matters; inside, the step is shown and its claims are made."""
        step = Step(name)
        self.steps.append(step)
        self.console.print()
        self.console.rule(Text(f"{len(self.steps)}  {name}", style="bold"), align="left", characters="─")
        self.console.print(Text(why, style="dim"))
        begun = time.monotonic()
        try:
            yield step
        finally:
            step.seconds = round(time.monotonic() - begun, 3)

    def say(self, text: str) -> None:
        """A line, as it is."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def claim(self, step: Step, text: str, held: bool) -> None:
        """Says whether the step shows what it claims."""
        step.claims.append((text, held))
        mark = Text("  ✓ ", "bold green") if held else Text("  ✗ NOT SHOWN: ", "bold red")
        self.console.print(mark + Text(text))

    def show(self, step: Step, page: Page, *, before: Sequence[str] = (), top: int = 5) -> None:
        """The first items of a page, what is new against `before`, and where the page comes from."""
        step.provenance = provenance(page)
        table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
        for item in page.items[:top]:
            title, category, price = self.titles.of(item.item_id) if self.titles else (item.item_id, "", "")
            is_new = bool(before) and item.item_id not in before
            new = Text("new", "green") if is_new else Text("")
            table.add_row(
                str(item.rank),
                Text(title),
                Text(category, "dim"),
                Text(price, justify="right"),
                f"{item.score:.3f}",
                new,
            )
        self.console.print(table)
        self.console.print(Text("  " + describe(page), style="cyan"), soft_wrap=True)

    def document(self) -> dict[str, Any]:
        """All steps, for `--json`."""
        return {
            "held": all(step.held for step in self.steps),
            "steps": [
                {
                    "name": step.name,
                    "seconds": step.seconds,
                    "held": step.held,
                    "claims": [{"claim": text, "held": held} for text, held in step.claims],
                    "provenance": step.provenance,
                    "facts": step.facts,
                }
                for step in self.steps
            ],
        }


def open_console(*, to_stderr: bool) -> Console:
    """A terminal's own width; elsewhere plain text of 110 columns."""
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console = Console(stderr=to_stderr, highlight=False, width=_PLAIN_WIDTH, no_color=True)
    return console


def provenance(page: Page) -> dict[str, Any]:
    """Where a page comes from, as JSON."""
    return MessageToDict(page.provenance, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def describe(page: Page) -> str:
    """Where a page comes from, in one line."""
    source = page.provenance
    rung = feed_pb2.Rung.Name(source.rung).removeprefix("RUNG_")
    cache = feed_pb2.CacheOutcome.Name(source.cache).removeprefix("CACHE_OUTCOME_")
    stages = ", ".join(f"{one.stage} {one.milliseconds:.1f}" for one in source.stages if one.stage != "total")
    quality = "degraded" if source.degraded else "full quality"
    reasons = f" ({', '.join(source.reasons)})" if source.reasons else ""
    return (
        f"{rung}, {quality}{reasons} | cache {cache} | {source.context_events} events in the question | "
        f"{total_ms(page):.1f} ms ({stages})"
    )


def total_ms(page: Page) -> float:
    """Milliseconds that the page took in the service."""
    return next((one.milliseconds for one in page.provenance.stages if one.stage == "total"), 0.0)


def ids(page: Page) -> list[str]:
    """The items of a page, best first."""
    return [item.item_id for item in page.items]
