"""What must hold before a snapshot is published. Plain comparisons; a bound that does not apply gives no gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from indexer.errors import GateFailed
from indexer.settings import GateSettings


@dataclass(frozen=True, slots=True)
class Gate:
    """`measured` must be at least `bound`; `setting` is what moves the bound."""

    name: str
    measured: float
    bound: float
    setting: str

    @property
    def holds(self) -> bool:
        """Whether the snapshot may pass; NaN may not."""
        return self.measured >= self.bound

    def __str__(self) -> str:
        return f"{self.name}: {self.measured:g}, expected at least {self.bound:g} ({self.setting})"


def gates(
    settings: GateSettings,
    *,
    items: int,
    available: int,
    parent_items: int | None,
    recall: float,
    recall_floor: float,
    evaluation: dict[str, Any],
) -> list[Gate]:
    """All gates that apply."""
    out = [
        Gate("available items", available, 1, "index.catalogue.columns.available"),
        Gate("recall@500", recall, recall_floor, "index.ann.recall_floor"),
    ]
    if parent_items is not None:
        shrunk = parent_items * (1 - settings.max_shrink)
        out.append(Gate("items against the parent", items, shrunk, "index.gates.max_shrink"))
    if evaluation["questions"] >= settings.min_sessions:
        ours = evaluation["session"]["two_stage"]["ndcg_at_10"]
        floor = round(evaluation["session"]["blend"]["ndcg_at_10"] - settings.ranker_tolerance, 6)
        out.append(Gate("NDCG@10 of the ranker", ours, floor, "index.gates.ranker_tolerance"))
        if "parent" in evaluation:
            theirs = round(evaluation["parent"]["ndcg_at_10"] * (1 - settings.parent_tolerance), 6)
            out.append(Gate("NDCG@10 against the parent", ours, theirs, "index.gates.parent_tolerance"))
    return out


def overridden(checked: Sequence[Gate], *, force: bool) -> list[str]:
    """The gates that do not hold, when `force` lets them pass. Raises GateFailed naming all of them otherwise."""
    failed = [str(gate) for gate in checked if not gate.holds]
    if failed and not force:
        raise GateFailed(f"the snapshot is not published: {'; '.join(failed)}")
    return failed
