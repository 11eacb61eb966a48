"""`feedline ...`: the top of the house. Each command imports what it needs when it is called."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from services.cli_bench import bench
from services.cli_events import events
from services.cli_index import index
from services.command import ConfigOption, JsonOption, SnapshotsOption, errors, given
from services.errors import StartError
from services.settings import load_settings

app = typer.Typer(
    name="feedline",
    help="A personalised product feed inside a latency and a cost budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(index, name="index")
app.add_typer(events, name="events")
app.add_typer(bench, name="bench")


@app.command()
def serve(
    config: ConfigOption = None,
    snapshots: SnapshotsOption = None,
    host: Annotated[str | None, typer.Option(help="Address of the gRPC port.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The gRPC port; 0: a free one.")] = None,
    console_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The console's port; 0: a free one.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, max=256, help="Processes that share the port.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plain text off loopback.")] = False,
    as_of: Annotated[
        datetime | None, typer.Option(help="Serve as of this moment; UTC where no zone is given. For evaluation.")
    ] = None,
) -> None:
    """Serve feeds over gRPC, and the console beside it, until SIGTERM or SIGINT."""
    with errors():
        settings = load_settings(config)
        over = given(host=host, port=port, workers=workers, insecure=insecure or None, as_of=as_of)
        serving = settings.serve.model_copy(update=over)
        console = settings.console.model_copy(update=given(port=console_port))
        folder = settings.snapshots.model_copy(update=given(folder=snapshots))
        settings = settings.model_copy(update={"serve": serving, "console": console, "snapshots": folder})
        if serving.workers == 1:
            from services.feed.app import run
        else:
            from services.workers.run import run
        run(settings)


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
    timeout: Annotated[float, typer.Option(help="Seconds, retries included.")] = 2.0,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypted; --ca and --certificate say so, too.")] = False,
    ca: Annotated[Path | None, typer.Option(help="PEM file: who signed the service's certificate.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="PEM file of the client's own, for mTLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file: the key of --certificate.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Ask a running service for one page and print it."""
    with errors():
        from protos import feed_pb2
        from services.client import Tls
        from services.request import print_feed, viewed_now

        if (certificate is None) != (key is None):
            raise StartError("--certificate and --key: give both or neither")
        message = feed_pb2.GetFeedRequest(
            session_id=session,
            user_id=user,
            recent_events=viewed_now(item or []),
            category=category,
            region=region,
            page_size=page_size,
            page_token=page_token,
        )
        secure = Tls(ca, certificate, key) if tls or ca or certificate else None
        code = asyncio.run(print_feed(target, message, timeout_s=timeout, as_json=json_output, tls=secure))
    raise typer.Exit(code)


@app.command()
def demo(
    json_output: JsonOption = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep serving after the script, until Ctrl-C.")] = False,
    data: Annotated[Path, typer.Option(help="Where the demo keeps its data.")] = Path("data"),
) -> None:
    """A real catalogue, a snapshot, the service and a scripted shopper, explained step by step."""
    with errors():
        from indexer.packaged_model import require_packaged_model
        from services.demo.run import main as run_demo

        code = run_demo(json_output=json_output, keep=keep, data=data, model=require_packaged_model())
    raise typer.Exit(code)


@app.command("settings")
def print_settings() -> None:
    """Print a settings file with every key, its default and its meaning."""
    from indexer.settings import IndexSettings
    from services.settings import Settings
    from services.settings_file import example

    typer.echo(example(Settings, index=IndexSettings), nl=False)


def main() -> None:
    """The console script."""
    # OpenMP's threads wait by spinning, unless told before the first library loads it: on busy cores that makes
    # training ten times slower, and serving late.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app()


if __name__ == "__main__":
    main()
