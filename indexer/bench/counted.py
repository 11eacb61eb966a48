"""Random numbers that are functions of their place: the same for any order, any chunk and any number of rows asked.

SplitMix64's mixing step (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators") over counters.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_STEP = np.uint64(0x9E3779B97F4A7C15)


class Counted:
    """Streams of numbers of one seed. Each takes a name and one to three counters, int [n], broadcast together."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def bits(self, name: str, *counters: Ints | int) -> Bits:
        """uint64 [n]."""
        digest = hashlib.blake2b(f"{self._seed} {name}".encode(), digest_size=8).digest()
        state: Bits = np.full(1, int.from_bytes(digest, "little"), np.uint64)
        for counter in counters:
            state = _mixed(state + (np.atleast_1d(counter).astype(np.uint64) + np.uint64(1)) * _STEP)
        return state

    def share(self, name: str, *counters: Ints | int) -> Floats:
        """float64 [n], uniform in [0, 1)."""
        uniform: Floats = (self.bits(name, *counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return uniform

    def below(self, count: Ints | int, name: str, *counters: Ints | int) -> Ints:
        """int64 [n], uniform in 0 .. count - 1; `count` [n] or one number, at least 1."""
        drawn: Ints = (self.share(name, *counters) * count).astype(np.int64)
        return drawn


def _mixed(state: Bits) -> Bits:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Bits = state ^ (state >> np.uint64(31))
    return mixed
