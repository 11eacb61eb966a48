"""`feedline events ...`: recorded events, and what they tell of users. Imports as in `services.cli`."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from services.command import ConfigOption, JsonOption, errors, show, utc
from services.errors import StartError
from services.settings import load_settings

events = typer.Typer(help="Recorded events.", no_args_is_help=True)


@events.command("export")
def events_export(
    out: Annotated[Path, typer.Option("--out", help="Folder for the Parquet file.")],
    url: Annotated[str, typer.Option(help="State server; default: state.url, else the running embedded server.")] = "",
    config: ConfigOption = None,
    json_output: JsonOption = False,
) -> None:
    """Turn the recorded events into a Parquet file for the next night, then forget them."""
    with errors():
        from services.export import export_events

        exported = asyncio.run(export_events(load_settings(config).state, out, url))
        if json_output:
            show(exported, None, as_json=True)
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
    with errors():
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
            until=until and utc(until),
            items=settings.state.history_items,
            tenant=DEFAULT_WORD,
        ) as bought:
            with stages.stage("load", bought.read.users, "users") as advance:
                loaded = asyncio.run(load_histories(settings.state, url, bought.users, bought.what, advance))
            summary = {**asdict(bought.read), "loaded": asdict(loaded), "seconds": stages.seconds}
        if json_output:
            show(summary, None, as_json=True)
        else:
            typer.echo(f"{loaded.users:,} users loaded, {loaded.known:,} of them merged with what was recorded")
