"""Intervals of means over questions of few users: whole users are drawn again, since their questions are alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

PerQuestion = npt.NDArray[np.float64]

_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the bounds of its 95 % interval."""

    mean: float
    low: float
    high: float


class Bootstrap:
    """Draws of users, the same for all that is measured on the questions, so that differences are paired."""

    def __init__(self, users: npt.NDArray[np.integer], *, seed: int, draws: int = _DRAWS) -> None:
        """`users` int [Q]: whose question it is; every question of -1 is a user of its own."""
        lone = users < 0
        owner = users.astype(np.int64)
        owner[lone] = users.max(initial=0) + 1 + np.arange(lone.sum())
        self._owner = np.unique(owner, return_inverse=True)[1]
        count = int(self._owner.max(initial=-1)) + 1
        random = np.random.default_rng(seed)
        self._weights = np.stack([np.bincount(random.integers(0, count, count), minlength=count) for _ in range(draws)])
        self._size = np.bincount(self._owner, minlength=count)

    def mean(self, values: PerQuestion) -> Interval:
        """Of values [Q]; mean and bounds are NaN when there is no question."""
        drawn = self._draw(values)
        return _interval(float(values.mean()) if len(values) else float("nan"), drawn)

    def difference(self, ours: PerQuestion, theirs: PerQuestion) -> Interval:
        """Of ours - theirs, paired by question."""
        return self.mean(ours - theirs)

    def lift(self, ours: PerQuestion, theirs: PerQuestion) -> Interval:
        """Of mean(ours) / mean(theirs) - 1, paired by draw; not finite where theirs, or a draw of it, is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            point = float(np.divide(ours.mean(), theirs.mean()) - 1)
            return _interval(point, self._draw(ours) / self._draw(theirs) - 1)

    def _draw(self, values: PerQuestion) -> PerQuestion:
        sums = np.bincount(self._owner, weights=values, minlength=len(self._size))
        return np.asarray((self._weights @ sums) / np.maximum(1, self._weights @ self._size), np.float64)


def _interval(point: float, drawn: PerQuestion) -> Interval:
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(point, float(low), float(high))
