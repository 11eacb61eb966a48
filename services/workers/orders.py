"""What the parent tells a worker, in one line on its standard input: settings hold secrets, so neither arguments nor
environment will do. The pipe stays open: its end is the parent's."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from services.settings import Settings


class Orders(BaseModel):
    """`console`: the Unix socket of the worker's own console. `lock`: the file that is locked while a snapshot is
    loaded."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: Settings
    console: Path
    lock: Path
