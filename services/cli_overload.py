"""`feedline bench overload`. Imports as in `services.cli`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from services.command import ConfigOption, JsonOption, SnapshotsOption, errors, folder_of, show


def overload(
    snapshots: SnapshotsOption = None,
    config: ConfigOption = None,
    seconds: Annotated[float, typer.Option(min=0.2, help="Of each step.")] = 10,
    answers: Annotated[
        int, typer.Option(min=0, help="Steps at 2x and above last until about so many answers, where that is longer.")
    ] = 0,
    loads: Annotated[str, typer.Option(help="Offered load, times the provisioned peak.")] = "0.5,1,1.5,2,3,5,10",
    sweep_from: Annotated[float, typer.Option(min=0.1, help="Requests a second to begin the plateau with.")] = 25,
    hit_share: Annotated[float, typer.Option(min=0, max=1, help="Of the warm loads: questions that are kept.")] = 0.8,
    sessions: Annotated[
        bool, typer.Option("--sessions", help="Cold requests name a session, which is read when the door is open.")
    ] = False,
    retries: Annotated[int, typer.Option(min=0, max=10, help="Of the flush's clients, a request.")] = 3,
    budget_ms: Annotated[float, typer.Option(min=0, help="Goodput: complete answers within it.")] = 147,
    deadline_ms: Annotated[float, typer.Option(min=1, help="Of each request, from its sending.")] = 500,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    pin_service: Annotated[int | None, typer.Option(min=0, help="The only CPU of the services.")] = None,
    pin_generator: Annotated[int | None, typer.Option(min=0, help="The only CPU of the generator.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help='Setting of the services, e.g. "scoring.max_batch=16".')
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Writes the picture there, SVG.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Find the plateau, offer 0.5x to 10x of a peak at 75 % of it, and lay the laws of overload beside what came."""
    with errors():
        from services.bench.load.service import environment_of
        from services.bench.overload import bench as measuring
        from services.bench.overload import report
        from services.bench.overload.options import OverloadOptions, parse_loads

        options = OverloadOptions(
            snapshots=folder_of(snapshots, config),
            config=config,
            settings=environment_of(settings or []),
            loads=parse_loads(loads),
            seconds=seconds,
            answers=answers,
            sweep_from=sweep_from,
            hit_share=hit_share,
            sessions=sessions,
            retries=retries,
            budget_ms=budget_ms,
            deadline_ms=deadline_ms,
            seed=seed,
            pin_service=pin_service,
            pin_generator=pin_generator,
        )
        command = shlex.join(["feedline", *sys.argv[1:]])
        measured = measuring.run(options, command, lambda line: typer.echo(line, err=True))
        if plot:
            plot.write_text(report.picture(measured), encoding="utf-8")
        show(measured, report.printed(measured), as_json=json_output)
