"""What was made, beside what it was fitted to, for a person."""

from __future__ import annotations

from typing import Any

from rich.table import Table


def table_of(made: dict[str, Any]) -> Table:
    """Of the figures of `make`."""
    table = Table("", "made", "source", title=made["made_by"])
    for name, ours in made["made"].items():
        table.add_row(name.replace("_", " "), _shown(ours), _shown(made["source"][name]))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return "  ".join(map(_shown, value))
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
