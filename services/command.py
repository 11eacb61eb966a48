"""What commands share: options, errors that are meant for a person, output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from services.errors import StartError
from services.settings import load_settings

_MEANT_FOR_A_PERSON = frozenset({"indexer", "cache", "duckdb", "_duckdb"})
"""Packages whose exceptions say what was wrong with the input, the disk or the memory."""

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Settings, TOML. FEEDLINE_* variables go over it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
SnapshotsOption = Annotated[Path | None, typer.Option("--snapshots", help="Default: snapshots.folder of the settings.")]


@contextmanager
def errors() -> Iterator[None]:
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


def given(**values: object) -> dict[str, object]:
    """What was given on the command line."""
    return {name: value for name, value in values.items() if value is not None}


def utc(moment: datetime) -> datetime:
    """The moment in UTC; UTC where it names no zone."""
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def folder_of(snapshots: Path | None, config: Path | None) -> Path:
    """The snapshots folder: of the option, else of the settings."""
    return snapshots or load_settings(config).snapshots.folder


def show(value: object, table: object, *, as_json: bool) -> None:
    """The value as one JSON document, or the table."""
    if as_json:
        json.dump(value, sys.stdout, indent=1, allow_nan=False, default=str)
        sys.stdout.write("\n")
        return
    from rich.console import Console

    Console().print(table)
