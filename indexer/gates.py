"""What must hold before a snapshot is published. Plain comparisons; a bound that does not apply gives no gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from indexer.errors import GateFailed


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
    *,
    items: int,
    available: int,
    parent_items: int | None,
    max_shrink: float,
    recall: float,
    recall_floor: float,
    evaluation: dict[str, Any],
    min_sessions: int,
    ranker_tolerance: float,
) -> list[Gate]:
    """All gates that apply."""
    out = [
        Gate("available items", available, 1, "index.catalogue.columns.available"),
        Gate("recall@500", recall, recall_floor, "index.ann.recall_floor"),
    ]
    if parent_items is not None:
        out.append(Gate("items against the parent", items, parent_items * (1 - max_shrink), "index.gates.max_shrink"))
    if evaluation["sessions"] >= min_sessions:
        floor = round(evaluation["retrieval"]["ndcg@10"] - ranker_tolerance, 6)
        out.append(
            Gate("NDCG@10 of the ranker", evaluation["ranked"]["ndcg@10"], floor, "index.gates.ranker_tolerance")
        )
    return out


def overridden(checked: Sequence[Gate], *, force: bool) -> list[str]:
    """The gates that do not hold, when `force` lets them pass. Raises GateFailed naming all of them otherwise."""
    failed = [str(gate) for gate in checked if not gate.holds]
    if failed and not force:
        raise GateFailed(f"the snapshot is not published: {'; '.join(failed)}")
    return failed
