"""How often and when a call is made again: pure arithmetic, with randomness given."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses before the second, third, ... attempt: up to `first_s`, doubling up to `longest_s`, with full jitter: who
    failed together should not come back together (Brooker, "Exponential Backoff and Jitter", AWS, 2015)."""

    attempts: int = 3
    first_s: float = 0.02
    longest_s: float = 0.2

    def pause_s(self, attempt: int, rng: random.Random) -> float:
        """The pause after attempt number `attempt`, the first being 1."""
        return rng.uniform(0, min(self.longest_s, self.first_s * 2 ** (attempt - 1)))


class RetryBudget:
    """A bucket of tokens: a call puts `ratio` of one in, a call more takes a whole one out.

    So calls that are made again are at most `ratio` of all, and `burst` more: a service that fails for everybody is not
    asked three times as often (gRFC A6; Finagle's RetryBudget).
    """

    def __init__(self, ratio: float = 0.1, burst: int = 5) -> None:
        self._ratio = ratio
        self._burst = float(burst)
        self._tokens = self._burst

    def called(self) -> None:
        """A call was made for the first time."""
        self._tokens = min(self._burst, self._tokens + self._ratio)

    def take(self) -> bool:
        """Whether one more attempt may be made now."""
        # Tenths add up to a little less than they should.
        if self._tokens < 1 - 1e-9:
            return False
        self._tokens -= 1
        return True
