"""Which questions of a batch go on from the fast ranker to the strong one: the doubtful, as far as time allows."""

from __future__ import annotations

from collections.abc import Sequence

from indexer.contract.cascade import CascadeSpec, Floats, doubt

_MEMORY = 0.9
_CAUTION = 1.5
"""A run is begun when so many times its usual duration is left."""


class StrongCost:
    """Seconds that the strong ranker takes a question: the snapshot's word at first, then what is observed here."""

    def __init__(self, spec: CascadeSpec) -> None:
        self.seconds = spec.strong_ms / 1e3

    def observe(self, questions: int, seconds: float) -> None:
        """A run on so many questions took so long."""
        if questions > 0:
            self.seconds = _MEMORY * self.seconds + (1 - _MEMORY) * seconds / questions


def uncertain(scores: Floats, spec: CascadeSpec, share: float) -> bool:
    """Whether the order by the fast ranker's scores, float32 [C], is among the `share` (0..1) that is most doubtful."""
    return doubt(scores, spec) >= spec.threshold(share)


def escalate(
    scores: Sequence[Floats], left_s: float, seconds_each: float, spec: CascadeSpec, share: float
) -> list[int]:
    """The questions of a batch that are to be scored again, by their places in order; the most doubtful first in line.

    `left_s`: seconds until the batch must be done, the least of its questions'; all of them wait for the strong ranker,
    which takes `seconds_each` a question.
    """
    if share <= 0:
        return []
    doubts = [doubt(each, spec) for each in scores]
    threshold = spec.threshold(share)
    wanted = [at for at, each in enumerate(doubts) if each >= threshold and each != float("-inf")]
    affordable = len(wanted)
    if seconds_each > 0:
        affordable = max(0, int(left_s / (_CAUTION * seconds_each)))
    chosen = sorted(wanted, key=lambda at: -doubts[at])[:affordable]
    return sorted(chosen)
