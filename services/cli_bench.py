"""`feedline bench ...`: what can be measured on one's own machine. Imports as in `services.cli`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli_overload import overload
from services.command import ConfigOption, JsonOption, SnapshotsOption, errors, folder_of, show
from services.errors import StartError

if TYPE_CHECKING:
    from indexer.progress import Stages

bench = typer.Typer(help="Measure: catalogue, ann, batching, load, overload, peers.", no_args_is_help=True)
bench.command()(overload)


@bench.command()
def load(
    snapshots: SnapshotsOption = None,
    config: ConfigOption = None,
    target: Annotated[
        str | None, typer.Option(help="host:port of a running service. Default: one is started over the snapshots.")
    ] = None,
    console: Annotated[
        str | None, typer.Option(help="http://host:port of its console: items are its 100 most popular.")
    ] = None,
    pid: Annotated[int | None, typer.Option(help="Of the running service: CPU and memory are measured.")] = None,
    users: Annotated[Path | None, typer.Option(help="Ids of users with a history there, one a line.")] = None,
    steps: Annotated[
        str, typer.Option(help='Requests a second and seconds, e.g. "50:10,5x:3,50:10"; "5x": a spike.')
    ] = "20:5,50:5,100:5",
    arrivals: Annotated[
        Path | None, typer.Option(help="Instead of steps: a file of moments, seconds, one a line.")
    ] = None,
    find_plateau: Annotated[
        bool, typer.Option("--find-plateau", help="Instead of steps: raise the load until goodput stops growing.")
    ] = False,
    sweep_from: Annotated[float, typer.Option(min=0.1, help="Requests a second to begin the plateau with.")] = 25,
    sweep_growth: Annotated[float, typer.Option(min=1.01, help="From step to step.")] = 1.25,
    sweep_seconds: Annotated[float, typer.Option(min=0.1, help="Of each step.")] = 8,
    mix: Annotated[
        list[str] | None, typer.Option(help='What is asked: "key=value" or a TOML file; may be given again.')
    ] = None,
    budget_ms: Annotated[float, typer.Option(min=0, help="Goodput: complete answers within it.")] = 147,
    deadline_ms: Annotated[float, typer.Option(min=1, help="Of each request, from its sending.")] = 500,
    warm_up: Annotated[float, typer.Option(min=0, help="Seconds before the first step that do not count.")] = 2,
    channels: Annotated[int, typer.Option(min=1, max=256, help="Connections.")] = 4,
    max_outstanding: Annotated[int, typer.Option(min=1, help="What is due beyond it is not sent, and counted.")] = 4096,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    pin_service: Annotated[int | None, typer.Option(min=0, help="The only CPU of the service started here.")] = None,
    pin_generator: Annotated[int | None, typer.Option(min=0, help="The only CPU of the generator.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help='Setting of the service started here, e.g. "cache.enabled=false".')
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Writes the picture there, SVG.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Put an open-loop load on a service: latency from the intended send, goodput in the budget, fallback, CPU."""
    with errors():
        from services.bench.load import arrivals as arriving
        from services.bench.load import bench as loading
        from services.bench.load import report
        from services.bench.load.mix import read_mix
        from services.bench.load.plateau import Sweep
        from services.bench.load.service import environment_of

        options = loading.LoadOptions(
            snapshots=folder_of(snapshots, config),
            target=target,
            console=console,
            config=config,
            settings=environment_of(settings or []),
            pid=pid,
            users=tuple(users.read_text(encoding="utf-8").split()) if users else (),
            mix=read_mix(mix or []),
            steps=tuple(arriving.parse_steps(steps)),
            moments=tuple(arriving.read_moments(arrivals)) if arrivals else (),
            plateau=Sweep(sweep_from, sweep_growth, sweep_seconds) if find_plateau else None,
            warm_up_s=warm_up,
            budget_ms=budget_ms,
            deadline_ms=deadline_ms,
            channels=channels,
            max_outstanding=max_outstanding,
            seed=seed,
            pin_service=pin_service,
            pin_generator=pin_generator,
        )
        measured = loading.run(options, shlex.join(["feedline", *sys.argv[1:]]))
        if plot:
            report.picture(measured, plot)
        show(measured, report.printed(measured), as_json=json_output)


@bench.command("catalogue")
def bench_catalogue(
    items: Annotated[int, typer.Option(min=1, max=100_000_000, help="How many.")],
    out: Annotated[Path, typer.Option(help="A folder for catalogue.parquet and events.parquet.")],
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same bytes.")] = 1,
    sessions: Annotated[int | None, typer.Option(min=1, help="Default: one for eight items.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Write a synthetic catalogue and its sessions, fitted to the demo's data. Needs the extra `demo`."""
    with errors():
        from indexer.bench.make import make
        from indexer.bench.summary import table_of
        from indexer.progress import Stages, reporter_for
        from services.demo.dataset import prepare

        with TemporaryDirectory(prefix="feedline-bench-") as folder:
            real = prepare(Path(folder))
            stages = Stages(reporter_for(sys.stderr))
            made = make(real.catalogue, real.events, out, items=items, sessions=sessions, seed=seed, stages=stages)
        show(made, table_of(made), as_json=json_output)


@bench.command()
def peers(
    venvs: Annotated[Path, typer.Option(help="The folder that benchmarks/peers/install.sh was given.")],
    snapshots: SnapshotsOption = None,
    systems: Annotated[
        str, typer.Option(help="Only these, e.g. feedline,ray. Feedline's plateau is measured whatever is said.")
    ] = "",
    loads: Annotated[str, typer.Option(help="Offered load, times the plateau.")] = "0.5,1,2,4",
    repeats: Annotated[int, typer.Option(min=1, help="Of everything, in another order.")] = 2,
    seconds: Annotated[float, typer.Option(min=1, help="Of each step.")] = 6,
    pin_service: Annotated[int, typer.Option(min=0, help="The only CPU of each service.")] = 0,
    pin_generator: Annotated[int, typer.Option(min=0, help="The only CPU of the generator.")] = 1,
    json_output: JsonOption = False,
) -> None:
    """Measure Feedline beside other servers around the same two stages. Runs from a checkout."""
    with errors():
        checkout = Path(__file__).parents[1]
        if not (checkout / "benchmarks" / "peers").is_dir():
            raise StartError("bench peers: runs from a checkout of Feedline: benchmarks/ is not installed")
        sys.path.insert(0, str(checkout))

        import uvloop

        from benchmarks.peers import bench as measuring
        from benchmarks.peers.report import table

        options = measuring.PeersOptions(
            snapshots=folder_of(snapshots, None),
            venvs=venvs,
            times_plateau=measuring.parsed_loads(loads),
            repeats=repeats,
            step_s=seconds,
            pin_service=pin_service,
            pin_generator=pin_generator,
            systems=measuring.parsed_systems(systems),
        )
        found = uvloop.run(measuring.peers(options))
        show(found, table(found), as_json=json_output)


@bench.command()
def batching(
    snapshots: SnapshotsOption = None,
    config: ConfigOption = None,
    questions: Annotated[int, typer.Option(min=64, max=100_000, help="Asked in each round at each batch size.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="The batch sizes take turns.")] = 4,
    plot: Annotated[Path | None, typer.Option(help="Writes the picture there, SVG.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Measure throughput and p99 by batch size; names the largest batch within the budget, and settings."""
    with errors():
        from services.bench import batching as measuring
        from services.settings import load_settings

        settings = load_settings(config)
        folder = snapshots or settings.snapshots.folder
        found = measuring.bench_batching(folder, settings, each=questions, rounds=rounds)
        if plot is not None:
            plot.write_text(measuring.picture(found), encoding="utf-8")
        show(found, measuring.table(found), as_json=json_output)


@bench.command("ann")
def bench_ann(
    items: Annotated[int | None, typer.Option(min=1000, help="How many; else all of what is given.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="A folder of feedline bench catalogue. Default: one is made for this run.")
    ] = None,
    snapshots: Annotated[
        Path | None, typer.Option(help="Instead: the current snapshot's vectors and sessions.")
    ] = None,
    config: ConfigOption = None,
    rounds: Annotated[int, typer.Option(min=1, max=1000, help="Of batches; both sides take turns.")] = 5,
    threads: Annotated[int, typer.Option(min=1, max=256, help="Of batches; single queries have one.")] = 2,
    plot: Annotated[Path | None, typer.Option(help="Writes recall against latency there, SVG.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Choose an index as the nightly job does, and measure it: alone, in batches, under filters."""
    with errors(), TemporaryDirectory(prefix="feedline-bench-") as name:
        from indexer.bench import ann as comparing
        from indexer.bench.searched import read_searched, settings_of
        from indexer.progress import Stages, reporter_for
        from services.bench import ann as measuring
        from services.bench.asked import asked_of
        from services.settings import load_settings

        settings, folder, stages = load_settings(config), Path(name), Stages(reporter_for(sys.stderr))
        index = settings_of(settings.index)
        if snapshots is not None:
            searched = comparing.Searched(*asked_of(snapshots, comparing.QUERIES))
        else:
            searched = read_searched(data or _synthetic(folder / "data", items, stages), folder, index, stages)
        compared = comparing.compare(searched.first(items), index, folder, stages)
        vectors = compared.searched.vectors
        ours = measuring.Served(compared.index, compared.spec, vectors)
        theirs = measuring.Served(compared.reference, compared.reference_spec, vectors)
        narrow = [(each.name, each.mask, each.least, each.k) for each in compared.filters]
        measured = measuring.measure(
            ours,
            theirs,
            compared.asked,
            narrow,
            threads=threads,
            rounds=rounds,
            exact_below=settings.serve.exact_scan_items,
        )
        found = measuring.figures(ours, theirs, compared.recall_at_500, measured, compared.facts())
        if plot is not None:
            plot.write_text(measuring.picture(found), encoding="utf-8")
        show(found, measuring.one_row(found), as_json=json_output)


def _synthetic(folder: Path, items: int | None, stages: Stages) -> Path:
    """A synthetic catalogue of that many items, in `folder`."""
    from indexer.bench.make import make
    from services.demo.dataset import prepare

    if items is None:
        raise StartError("bench ann: one of --items, --data and --snapshots is expected")
    real = prepare(folder / "demo")
    make(real.catalogue, real.events, folder, items=items, sessions=None, seed=1, stages=stages)
    return folder
