"""`feedline ...`: the top of the house. Each command imports what it needs when it is called."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NoReturn

import typer

from services.errors import StartError
from services.settings import load_settings

_MEANT_FOR_A_PERSON = frozenset({"indexer", "cache", "duckdb", "_duckdb"})
"""Packages whose exceptions say what was wrong with the input, the disk or the memory."""

app = typer.Typer(
    name="feedline",
    help="A personalised product feed inside a latency and a cost budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
index = typer.Typer(help="The nightly job and its snapshots.", no_args_is_help=True)
events = typer.Typer(help="Recorded events.", no_args_is_help=True)
app.add_typer(index, name="index")
app.add_typer(events, name="events")

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings, TOML. FEEDLINE_* variables go over it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
SnapshotsOption = Annotated[Path | None, typer.Option("--snapshots", help="Default: snapshots.folder of the settings.")]


@app.command()
def serve(
    config: ConfigOption = None,
    snapshots: SnapshotsOption = None,
    host: Annotated[str | None, typer.Option(help="Address of the gRPC port.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The gRPC port; 0: a free one.")] = None,
    console_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The console's port; 0: a free one.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plain text off loopback.")] = False,
    as_of: Annotated[
        datetime | None, typer.Option(help="Serve as of this moment; UTC where no zone is given. For evaluation.")
    ] = None,
) -> None:
    """Serve feeds over gRPC, and the console beside it, until SIGTERM or SIGINT."""
    with _errors():
        from services.feed.app import run

        settings = load_settings(config)
        serving = settings.serve.model_copy(update=_given(host=host, port=port, insecure=insecure or None, as_of=as_of))
        console = settings.console.model_copy(update=_given(port=console_port))
        folder = settings.snapshots.model_copy(update=_given(folder=snapshots))
        run(settings.model_copy(update={"serve": serving, "console": console, "snapshots": folder}))


@app.command()
def request(
    target: Annotated[str, typer.Option(help="host:port of the gRPC service.")] = "127.0.0.1:50051",
    session: Annotated[str, typer.Option(help="Session id.")] = "",
    user: Annotated[str, typer.Option(help="User id: what was bought before takes part.")] = "",
    item: Annotated[list[str] | None, typer.Option(help="An item viewed just now; may be given again.")] = None,
    category: Annotated[str, typer.Option(help="Only items of this category.")] = "",
    region: Annotated[str, typer.Option(help="Only items that may be shown in this region.")] = "",
    page_size: Annotated[int, typer.Option(help="Items, 1 to 100; 0: as the service is set.")] = 0,
    page_token: Annotated[str, typer.Option(help="Of the page before.")] = "",
    timeout: Annotated[float, typer.Option(help="Seconds.")] = 2.0,
    json_output: JsonOption = False,
) -> None:
    """Ask a running service for one page and print it."""
    with _errors():
        from protos import feed_pb2
        from services.request import print_feed, viewed_now

        message = feed_pb2.GetFeedRequest(
            session_id=session,
            user_id=user,
            recent_events=viewed_now(item or []),
            category=category,
            region=region,
            page_size=page_size,
            page_token=page_token,
        )
        code = asyncio.run(print_feed(target, message, timeout_s=timeout, as_json=json_output))
    raise typer.Exit(code)


@app.command()
def demo(
    json_output: JsonOption = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep serving after the script, until Ctrl-C.")] = False,
    data: Annotated[Path, typer.Option(help="Where the demo keeps its data.")] = Path("data"),
) -> None:
    """A real catalogue, a snapshot, the service and a scripted shopper, explained step by step."""
    with _errors():
        from services.demo.run import main as run_demo

        code = run_demo(json_output=json_output, keep=keep, data=data)
    raise typer.Exit(code)


@app.command("settings")
def print_settings() -> None:
    """Print a settings file with every key, its default and its meaning."""
    from indexer.settings import IndexSettings
    from services.settings import Settings
    from services.settings_file import example

    typer.echo(example(Settings, index=IndexSettings), nl=False)


@events.command("export")
def events_export(
    out: Annotated[Path, typer.Option("--out", help="Folder for the Parquet file.")],
    url: Annotated[str, typer.Option(help="State server; default: state.url, else the running embedded server.")] = "",
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> None:
    """Turn the recorded events into a Parquet file for the next night, then forget them."""
    with _errors():
        from services.export import export_events

        exported = asyncio.run(export_events(load_settings(config).state, out, url))
        if json_output:
            _print(exported, None, as_json=True)
        else:
            typer.echo(f"{exported['events']} events -> {exported['file'] or 'no file: nothing was recorded'}")
            if exported["rejects"]:
                typer.echo(f"{exported['rejected']} entries are no events of this version -> {exported['rejects']}")


@events.command("load")
def events_load(
    source: Annotated[
        Path, typer.Argument(metavar="EVENTS", help="Shopping events as of `index build`: a file or a folder.")
    ],
    url: Annotated[str, typer.Option(help="State server; default: state.url, else the embedded server.")] = "",
    config: ConfigOption = None,
    until: Annotated[
        datetime | None, typer.Option(help="Leave out events after this time; UTC where no zone is given.")
    ] = None,
    work: Annotated[Path, typer.Option(help="Folder for scratch files and bad rows.")] = Path("data/load"),
    json_output: JsonOption = False,
) -> None:
    """Write what users bought before into their histories. Stopped, it goes on where it stopped."""
    with _errors():
        from dataclasses import asdict

        from indexer.progress import Stages, reporter_for
        from indexer.purchases import purchases
        from indexer.settings import IndexSettings
        from services.feed.validate import DEFAULT_WORD
        from services.history_load import load_histories

        settings = load_settings(config)
        if not settings.state.history_items:
            raise StartError("state.history_items is 0: there are no histories to load into")
        index_settings = IndexSettings.model_validate(settings.index)
        stages = Stages(reporter_for(sys.stderr))
        with purchases(
            index_settings,
            source,
            work,
            stages,
            now=datetime.now(UTC),
            until=until and _utc(until),
            items=settings.state.history_items,
            tenant=DEFAULT_WORD,
        ) as bought:
            with stages.stage("load", bought.read.users, "users") as advance:
                loaded = asyncio.run(load_histories(settings.state, url, bought.users, bought.what, advance))
            summary = {**asdict(bought.read), "loaded": asdict(loaded), "seconds": stages.seconds}
        if json_output:
            _print(summary, None, as_json=True)
        else:
            typer.echo(f"{loaded.users:,} users loaded, {loaded.known:,} of them merged with what was recorded")


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
    json_output: JsonOption = False,
) -> None:
    """Build a snapshot from a catalogue and its events, and publish it."""
    with _errors():
        from indexer.job import build
        from indexer.progress import reporter_for
        from indexer.settings import IndexSettings
        from indexer.summary import table_of

        settings = IndexSettings.model_validate(load_settings(config).index)
        summary = build(
            settings,
            catalogue,
            shop_events,
            out,
            now=datetime.now(UTC),
            reporter=reporter_for(sys.stderr),
            until=until and _utc(until),
            force=force,
        )
        _print(summary.as_dict(), table_of(summary), as_json=json_output)


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
    with _errors(), ExitStack() as stack:
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
        terms = Terms(_utc(start), stop and _utc(stop), tune and _utc(tune), questions, mode, kept)
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
        _print(evaluation, tables(evaluation), as_json=json_output)


@index.command("list")
def index_list(snapshots: SnapshotsOption = None, config: ConfigOption = None, json_output: JsonOption = False) -> None:
    """List the snapshots that are kept; the one that is served is marked."""
    with _errors():
        from services.snapshots import describe, table

        rows = describe(_folder(snapshots, config))
        _print(rows, table(rows), as_json=json_output)


@index.command("verify")
def index_verify(
    snapshot: Annotated[str, typer.Argument(help="Its id; default: the current one.")] = "",
    snapshots: SnapshotsOption = None,
    config: ConfigOption = None,
) -> None:
    """Check every file of a snapshot against its manifest, load it, and ask its golden queries."""
    with _errors():
        from services.snapshots import verify

        typer.echo(verify(_folder(snapshots, config), snapshot))


@index.command("rollback")
def index_rollback(
    to: Annotated[str, typer.Option(help="The id to go back to; default: the parent of the current one.")] = "",
    snapshots: SnapshotsOption = None,
    config: ConfigOption = None,
) -> None:
    """Publish the parent of the current snapshot again."""
    with _errors():
        from indexer.contract.publish import exclusive, rollback

        folder = _folder(snapshots, config)
        with exclusive(folder, "feedline index rollback"):
            typer.echo(f"serving {rollback(folder, to or None)} from now on")


def main() -> None:
    """The console script."""
    # OpenMP's threads wait by spinning, unless told before the first library loads it: on busy cores that makes
    # training ten times slower, and serving late.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()


@contextmanager
def _errors() -> Iterator[None]:
    """Turns the errors that are meant for a person into one line on standard error and exit code 2."""
    from pydantic import ValidationError

    from indexer.contract.snapshot import SnapshotError
    from services.settings import describe

    try:
        yield
    except (StartError, SnapshotError) as error:
        _fail(str(error))
    except ValidationError as error:
        _fail(describe(error, None))
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except Exception as error:
        if type(error).__module__.split(".")[0] in _MEANT_FOR_A_PERSON:
            _fail(str(error))
        raise


def _fail(message: str) -> NoReturn:
    typer.echo(f"feedline: {message}", err=True)
    raise typer.Exit(2)


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _folder(snapshots: Path | None, config: Path | None) -> Path:
    return snapshots or load_settings(config).snapshots.folder


def _print(value: object, table: object, *, as_json: bool) -> None:
    if as_json:
        json.dump(value, sys.stdout, indent=1, allow_nan=False, default=str)
        sys.stdout.write("\n")
        return
    from rich.console import Console

    Console().print(table)


if __name__ == "__main__":
    main()
