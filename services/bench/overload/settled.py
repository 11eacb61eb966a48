"""When a service is back to normal: pure arithmetic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SHARE = 0.01
"""Of the requests of a window, that may be bad in normal times; below it."""
WINDOW_S = 1.0
_STEP_S = 0.1


def seconds_until_settled(at: npt.NDArray[np.float64], bad: npt.NDArray[np.bool_], since: float) -> float | None:
    """Seconds after `since` until the first window of `WINDOW_S` in which less than `SHARE` of the requests are bad.

    `at` float64 [n]: when each was to leave, seconds, in order; `bad` bool [n]. Windows begin every 0.1 s and lie
    within the run; one in which nobody asks says nothing. None: there was no such window.
    """
    if not len(at):
        return None
    for turn in range(int(max(0.0, at[-1] - since - WINDOW_S) / _STEP_S) + 1):
        begins = since + turn * _STEP_S
        first, last = np.searchsorted(at, [begins, begins + WINDOW_S])
        if first < last and bad[first:last].mean() < SHARE:
            return round(turn * _STEP_S, 3)
    return None
