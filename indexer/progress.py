"""What a person sees while the job runs, and how long each stage took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TextIO

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

Clock = Callable[[], float]
Advance = Callable[[int], None]
_EVERY_S = 5.0


class Reporter(Protocol):
    """Where progress is shown."""

    def stage(self, name: str, total: int | None, unit: str) -> AbstractContextManager[Advance]:
        """While entered, the stage runs; the function it gives is called with how many `unit` more are done."""

    def note(self, text: str) -> None:
        """Says something that a person should know."""


class Silent:
    """Shows nothing; notes are kept for the caller."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Advance]:
        """Nothing is shown."""
        del name, total, unit
        yield lambda done: None

    def note(self, text: str) -> None:
        """Kept in `notes`."""
        self.notes.append(text)


class PlainLines:
    """For logs and pipes: a line when a stage begins to take long, then every five seconds, and when it ends."""

    def __init__(self, out: TextIO, clock: Clock = time.monotonic, every_s: float = _EVERY_S) -> None:
        self._out = out
        self._clock = clock
        self._every_s = every_s

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Advance]:
        """Prints rate and remaining time."""
        begun = said = self._clock()
        done = 0

        def advance(more: int) -> None:
            nonlocal said, done
            done += more
            now = self._clock()
            if now - said >= self._every_s:
                said = now
                self.note(f"{name}: {_progress(done, total, unit, now - begun)}")

        yield advance
        took = self._clock() - begun
        self.note(f"{name}: done, {_count(done, unit)}{took:.1f} s")

    def note(self, text: str) -> None:
        """One line."""
        print(text, file=self._out, flush=True)


class Bars:
    """For a terminal: one bar a stage, with rate and remaining time."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, name: str, total: int | None, unit: str) -> Iterator[Advance]:
        """A bar, or a spinner when the total is not known."""
        columns: list[ProgressColumn] = [
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=30),
            MofNCompleteColumn() if unit else TextColumn(""),
            _Rate(),
            TimeElapsedColumn(),
            TimeRemainingColumn(elapsed_when_finished=False) if unit else TextColumn(""),
        ]
        with Progress(*columns, console=self._console) as bars:
            task = bars.add_task(name, total=total, unit=unit)
            yield lambda done: bars.advance(task, done)
            finished = bars.tasks[0].completed
            bars.update(task, total=finished or 1, completed=finished or 1)

    def note(self, text: str) -> None:
        """One line above the bars."""
        self._console.print(text, highlight=False, markup=False)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Units a second."""
        unit = task.fields["unit"]
        return Text(f"{task.speed:,.0f} {unit}/s" if unit and task.speed else "", style="cyan")


class Stages:
    """Runs stages under a reporter and keeps the seconds of each in `seconds`, in order of entering."""

    def __init__(self, reporter: Reporter, clock: Clock = time.monotonic) -> None:
        self.reporter = reporter
        self.seconds: dict[str, float] = {}
        self._clock = clock

    @contextmanager
    def stage(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Advance]:
        """As Reporter.stage; seconds of a name that is entered again are added up."""
        begun = self._clock()
        try:
            with self.reporter.stage(name, total, unit) as advance:
                yield advance
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + self._clock() - begun, 3)

    def note(self, text: str) -> None:
        """Says something that a person should know."""
        self.reporter.note(text)


def reporter_for(out: TextIO) -> Reporter:
    """Bars on a terminal, plain lines elsewhere."""
    return Bars(Console(file=out)) if out.isatty() else PlainLines(out)


def _progress(done: int, total: int | None, unit: str, seconds: float) -> str:
    rate = done / seconds if seconds > 0 else 0.0
    if total is None or not rate:
        return f"{done:,} {unit}, {rate:,.0f}/s"
    return f"{done:,} of {total:,} {unit}, {rate:,.0f}/s, {max(0, total - done) / rate:,.0f} s left"


def _count(done: int, unit: str) -> str:
    return f"{done:,} {unit}, " if unit and done else ""
