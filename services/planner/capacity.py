"""The laws of overload: which share of the answers is a fallback when more is asked than can be scored.

Shares are of 1, loads are requests a second, costs are CPU seconds of an answer. Every function raises ValueError
naming the argument at fault.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of an answer: `scored` (a), out of the cache (`hit`, d), by popularity (`fallback`, b).

    Scoring costs more than falling back: else shedding would free nothing.
    """

    scored: float
    hit: float
    fallback: float

    def __post_init__(self) -> None:
        for name in ("scored", "hit", "fallback"):
            _at_least_0(name, getattr(self, name))
        if self.scored <= self.fallback:
            raise ValueError(f"scored: expected more than fallback ({self.fallback:g}), got {self.scored:g}")


def simple_fallback_share(*, capacity: float, load: float, hit_share: float = 0.0) -> float:
    """max(0, (1 - h) - C / L): the law that takes hits and fallbacks to be free.

    `capacity` (C): scored answers a second at most; `load` (L): requests a second, 0: nobody asks, nobody falls back;
    `hit_share` (h): of the answers, those out of the cache.
    """
    _at_least_0("capacity", capacity)
    _at_least_0("load", load)
    _share("hit_share", hit_share)
    return max(0.0, (1 - hit_share) - capacity / load) if load else 0.0


def fallback_share(costs: Costs, *, cores: float, load: float, hit_share: float = 0.0) -> float:
    """((1 - h) a + h d - U / L) / (a - b), from 0 to 1 - h: the law that counts what hits and fallbacks cost.

    It says that the CPU is spent to the full: of the requests that miss the cache, f L fall back and (1 - h - f) L are
    scored, so that L ((1 - h - f) a + h d + f b) = U. `cores` (U): CPU seconds a second.

    At 1 - h, all that miss the cache fall back. Past `most_load` even that is more than the CPU can give: no share is
    low enough, answers come ever later, and the law has nothing more to say.
    """
    _at_least_0("cores", cores)
    _at_least_0("load", load)
    _share("hit_share", hit_share)
    if not load:
        return 0.0
    wanted = (1 - hit_share) * costs.scored + hit_share * costs.hit
    return min(1 - hit_share, max(0.0, (wanted - cores / load) / (costs.scored - costs.fallback)))


def full_load(costs: Costs, *, cores: float, hit_share: float = 0.0) -> float:
    """U / ((1 - h) a + h d): the load from which on somebody falls back. Infinite where an answer costs nothing."""
    _at_least_0("cores", cores)
    _share("hit_share", hit_share)
    return _quotient(cores, (1 - hit_share) * costs.scored + hit_share * costs.hit)


def most_load(costs: Costs, *, cores: float, hit_share: float = 0.0) -> float:
    """U / ((1 - h) b + h d): the load past which there is no CPU for the hits and the fallbacks alone."""
    _at_least_0("cores", cores)
    _share("hit_share", hit_share)
    return _quotient(cores, (1 - hit_share) * costs.fallback + hit_share * costs.hit)


def _quotient(cores: float, cost: float) -> float:
    return cores / cost if cost else math.inf


def _at_least_0(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}: expected a finite number of at least 0, got {value!r}")


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}: expected a share from 0 to 1, got {value!r}")
