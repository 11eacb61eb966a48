"""What a night learns from: events, content, items, and the popularity of any moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from indexer.contract.items import ItemTable
from indexer.learn.interactions import Interactions

Floats = npt.NDArray[np.float32]
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Material:
    """`content` float16 [n, D], may be memory-mapped. `popularity_before`: float32 [n] in 0..1 by the events before a
    day (since 1970); None: by all of them."""

    log: Interactions
    content: npt.NDArray[np.float16]
    items: ItemTable
    popularity_before: Callable[[float | None], Floats]


@dataclass(frozen=True, slots=True)
class Windows:
    """Days since 1970: rankers learn from sessions in [train, validate), everything is chosen on those in [validate,
    evaluate), and reported on those in [evaluate, end). `by_parent`: `evaluate` is where the parent's events end."""

    train: float
    validate: float
    evaluate: float
    end: float
    by_parent: bool

    def as_text(self) -> dict[str, str]:
        """The moments in ISO 8601, UTC."""
        return {name: moment_of(getattr(self, name)).isoformat() for name in ("train", "validate", "evaluate", "end")}


def split(
    log: Interactions,
    *,
    train: float,
    validate: float,
    evaluate: float,
    least: int,
    parent_end: float | None,
    least_after_parent: int,
) -> Windows | None:
    """Windows of the given shares of the sessions with two items or more; None when there are fewer than `least`.

    `parent_end` (days): when at least `least_after_parent` of the sessions begin after it, evaluation begins there.
    """
    begun = log.begun[np.diff(log.starts) >= 2]
    if len(begun) < least:
        return None
    end = float(np.nextafter(begun[-1], np.inf))
    cut = float(begun[int((1 - evaluate) * (len(begun) - 1))])
    by_parent = parent_end is not None and int(np.count_nonzero(begun > parent_end)) >= least_after_parent
    if by_parent and parent_end is not None:
        cut = float(np.nextafter(parent_end, np.inf))
    before = begun[begun < cut]
    if len(before) < least // 2:
        return None

    def start(share: float) -> float:
        return float(before[int((1 - share) * (len(before) - 1))])

    return Windows(start(train + validate), start(validate), cut, end, by_parent)


def moment_of(day: float) -> datetime:
    """Days since 1970 as a moment, UTC."""
    return datetime.fromtimestamp(day * _DAY_S, UTC)


def day_of(moment: datetime) -> float:
    """A moment with a zone as days since 1970."""
    return moment.timestamp() / _DAY_S
