"""`feedline index ...`: the nightly job, its snapshots, and how good they are. Imports as in `services.cli`."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from services.command import ConfigOption, JsonOption, SnapshotsOption, errors, folder_of, show, utc
from services.errors import StartError
from services.settings import load_settings

index = typer.Typer(help="The nightly job and its snapshots.", no_args_is_help=True)


@index.command("build")
def index_build(
    catalogue: Annotated[
        Path, typer.Option("--catalogue", help="Items: Parquet, CSV or JSON Lines; a file or a folder.")
    ],
    shop_events: Annotated[Path, typer.Option("--events", help="Shopping events, likewise; may be empty.")],
    out: Annotated[Path, typer.Option("--out", help="The snapshots folder.")],
    config: ConfigOption = None,
    until: Annotated[
        datetime | None, typer.Option(help="Leave out events after this time; UTC where no zone is given.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Publish although a gate says no; the summary names it.")
    ] = False,
    engine: Annotated[
        Literal["local", "ray"] | None, typer.Option(help="Where texts are encoded; default: index.encoder.engine.")
    ] = None,
    json_output: JsonOption = False,
) -> None:
    """Build a snapshot from a catalogue and its events, and publish it."""
    with errors():
        from indexer.job import build
        from indexer.progress import reporter_for
        from indexer.settings import IndexSettings
        from indexer.summary import table_of

        settings = IndexSettings.model_validate(load_settings(config).index)
        if engine is not None:
            encoder = settings.encoder.model_copy(update={"engine": engine})
            settings = settings.model_copy(update={"encoder": encoder})
        summary = build(
            settings,
            catalogue,
            shop_events,
            out,
            now=datetime.now(UTC),
            reporter=reporter_for(sys.stderr),
            until=until and utc(until),
            force=force,
        )
        show(summary.as_dict(), table_of(summary), as_json=json_output)


@index.command("evaluate")
def index_evaluate(
    shop_events: Annotated[Path, typer.Option("--events", help="Shopping events, also those of the window.")],
    start: Annotated[datetime, typer.Option(help="Where the window begins; UTC where no zone is given.")],
    catalogue: Annotated[
        Path | None, typer.Option("--catalogue", help="Items, to build a snapshot --until the start.")
    ] = None,
    snapshots: Annotated[
        Path | None, typer.Option("--snapshots", help="Instead: a folder whose current snapshot ends there.")
    ] = None,
    stop: Annotated[datetime | None, typer.Option(help="Where the window ends; default: after the last event.")] = None,
    tune: Annotated[
        datetime | None,
        typer.Option(help="Baselines are tuned from here to the start; default: as long as the window."),
    ] = None,
    questions: Annotated[int, typer.Option(min=1, help="Sessions of the window, at most.")] = 3000,
    mode: Annotated[Literal["shared", "personal"], typer.Option(help="Of retrieval.")] = "shared",
    out: Annotated[Path | None, typer.Option("--out", help="A folder for report.json and report.html.")] = None,
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> None:
    """Serve a snapshot to the sessions that came after it, and measure it beside baselines."""
    with errors(), ExitStack() as stack:
        from functools import partial

        from indexer.job import build
        from indexer.learn.measures import DEPTH
        from indexer.progress import Stages, reporter_for
        from indexer.settings import IndexSettings
        from indexer.trial import Terms, current, just_before, trial
        from indexer.trial_report import degraded, save, tables
        from services import logs
        from services.replay import replay
        from services.slates import first_pages

        settings = load_settings(config)
        index_settings = IndexSettings.model_validate(settings.index)
        kept = settings.state.history_items
        terms = Terms(utc(start), stop and utc(stop), tune and utc(tune), questions, mode, kept)
        stages = Stages(reporter_for(sys.stderr))
        now = datetime.now(UTC)
        if catalogue is not None and snapshots is None:
            snapshots = Path(stack.enter_context(TemporaryDirectory(prefix="feedline-evaluate-")))
            until = just_before(terms.start)
            build(index_settings, catalogue, shop_events, snapshots, now=now, reporter=stages.reporter, until=until)
        elif snapshots is None or catalogue is not None:
            raise StartError("--catalogue and --snapshots: exactly one of the two is expected")
        snapshot = current(snapshots)
        logs.configure(settings.log.model_copy(update={"level": "warning"}))
        serve = partial(replay, settings, snapshots, mode=mode, depth=DEPTH)
        evaluation = trial(index_settings, snapshot, shop_events, terms, serve, first_pages, stages, now)
        if out is not None:
            save(snapshot, evaluation, out)
        if evaluation["degraded_pages"]:
            typer.echo(f"feedline: {degraded(evaluation)}", err=True)
        show(evaluation, tables(evaluation), as_json=json_output)


@index.command("list")
def index_list(snapshots: SnapshotsOption = None, config: ConfigOption = None, json_output: JsonOption = False) -> None:
    """List the snapshots that are kept; the one that is served is marked."""
    with errors():
        from services.snapshots import describe, table

        rows = describe(folder_of(snapshots, config))
        show(rows, table(rows), as_json=json_output)


@index.command("verify")
def index_verify(
    snapshot: Annotated[str, typer.Argument(help="Its id; default: the current one.")] = "",
    snapshots: SnapshotsOption = None,
    config: ConfigOption = None,
) -> None:
    """Check every file of a snapshot against its manifest, load it, and ask its golden queries."""
    with errors():
        from services.snapshots import verify

        typer.echo(verify(folder_of(snapshots, config), snapshot))


@index.command("rollback")
def index_rollback(
    to: Annotated[str, typer.Option(help="The id to go back to; default: the parent of the current one.")] = "",
    snapshots: SnapshotsOption = None,
    config: ConfigOption = None,
) -> None:
    """Publish the parent of the current snapshot again."""
    with errors():
        from indexer.contract.publish import exclusive, rollback

        folder = folder_of(snapshots, config)
        with exclusive(folder, "feedline index rollback"):
            typer.echo(f"serving {rollback(folder, to or None)} from now on")
