from __future__ import annotations

from dataclasses import replace

import numpy as np

from indexer.learn.rankers import DISTILLED, LABELS, _better
from tests.learn.some_lists import make_some_lists


def test_labels_alone_are_published_only_when_they_are_better_by_more_than_chance() -> None:
    check = make_some_lists(400, seed=3)
    check = replace(check, users=np.arange(len(check), dtype=np.int32))
    noise = np.random.default_rng(1).normal(0.2, 0.2, len(check))
    assert _better({LABELS: noise + 0.001, DISTILLED: noise[::-1]}, check, seed=1) == DISTILLED
    assert _better({LABELS: noise + 0.05, DISTILLED: noise}, check, seed=1) == LABELS
    assert _better({LABELS: noise, DISTILLED: noise}, check, seed=1) == DISTILLED
