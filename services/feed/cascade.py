"""Which questions of a batch go on from the fast ranker to the strong one: the doubtful, as far as time allows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import structlog

from indexer.contract.candidates import CANDIDATE_MASK
from indexer.contract.cascade import CascadeSpec, Floats, doubt
from services.deadline import Clock
from services.feed.ranker import Ranker

log = structlog.get_logger()
Observe = Callable[[str, int], None]
"""Told how it went ("asked", "failed") and for how many questions."""
_BY_CANDIDATE = frozenset({"features", "candidate_vectors", CANDIDATE_MASK})
_MEMORY = 0.9
_CAUTION = 1.5
"""A run is begun when so many times its usual duration is left."""
_FORGETTING = 0.999


class StrongCost:
    """Seconds that the strong ranker takes a question: the snapshot's word at first, then what is observed here."""

    def __init__(self, spec: CascadeSpec) -> None:
        self._said = spec.strong_ms / 1e3
        self.seconds = self._said

    def observe(self, questions: int, seconds: float) -> None:
        """A run on so many questions took so long."""
        if questions > 0:
            self.seconds = _MEMORY * self.seconds + (1 - _MEMORY) * seconds / questions

    def withheld(self) -> None:
        """No run was begun for want of time. What is not run is not observed: without a slow return to the snapshot's
        word, one run that took long would be the last."""
        self.seconds = self._said + _FORGETTING * (self.seconds - self._said)


def uncertain(scores: Floats, spec: CascadeSpec, share: float) -> bool:
    """Whether the order by the fast ranker's scores, float32 [C], is among the `share` (0..1) that is most doubtful."""
    doubted = doubt(scores, spec)
    return doubted >= spec.threshold(share) and doubted != float("-inf")


def escalate(
    scores: Sequence[Floats], left_s: float, seconds_each: float, spec: CascadeSpec, share: float
) -> list[int]:
    """The questions of a batch that are to be scored again, by their places in order; the most doubtful first in line.

    `left_s`: seconds until the batch must be done, the least of its questions'; all of them wait for the strong ranker,
    which takes `seconds_each` a question.
    """
    if left_s <= 0:
        return []
    wanted = [at for at, each in enumerate(scores) if uncertain(each, spec, share)]
    affordable = len(wanted)
    if seconds_each > 0 and math.isfinite(left_s):
        affordable = int(left_s / (_CAUTION * seconds_each))
    chosen = sorted(wanted, key=lambda at: -doubt(scores[at], spec))[:affordable]
    return sorted(chosen)


@dataclass(frozen=True, slots=True)
class Cascade:
    """The strong ranker of a snapshot, and when it is asked. Runs on the compute thread."""

    ranker: Ranker
    spec: CascadeSpec
    share: float
    cost: StrongCost
    observe: Observe

    @classmethod
    def of(cls, ranker: Ranker, spec: CascadeSpec, share: float, observe: Observe) -> Cascade:
        """Asked for the `share` (0..1) of the questions whose order is most doubtful."""
        return cls(ranker, spec, share, StrongCost(spec), observe)

    def improved(
        self, fast: Sequence[Floats], tensors: Mapping[str, npt.NDArray[np.generic]], expires_at: float, clock: Clock
    ) -> list[Floats]:
        """The scores of a batch, float32 [C_i]: the strong ranker's where the order by `fast` is doubtful and there is
        time until `expires_at` on the clock; those of `fast` everywhere else, and where the strong ranker fails."""
        begun = clock()
        places = escalate(fast, expires_at - begun, self.cost.seconds, self.spec, self.share)
        if not places:
            if any(uncertain(each, self.spec, self.share) for each in fast):
                self.cost.withheld()
            return list(fast)
        sizes = [len(fast[at]) for at in places]
        # What is padding in all of these questions is cut: the model answers as many scores as it is given candidates.
        some = {name: _cut(each[places], name, max(sizes)) for name, each in tensors.items()}
        try:
            scores = self.ranker.score(some, sizes)
        except Exception as error:  # noqa: BLE001 - onnxruntime raises kinds of its own that share no base
            log.error("the strong ranker failed", ranker=self.ranker.spec.id, error=repr(error))
            self.observe("failed", len(places))
            return list(fast)
        self.cost.observe(len(places), clock() - begun)
        self.observe("asked", len(places))
        better = dict(zip(places, scores, strict=True))
        return [better.get(at, each) for at, each in enumerate(fast)]


def _cut(tensor: npt.NDArray[np.generic], name: str, longest: int) -> npt.NDArray[np.generic]:
    return tensor[:, :longest] if name in _BY_CANDIDATE else tensor
