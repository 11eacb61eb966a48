"""How wide to search where a filter leaves a part of the items: measured, since its items may lie anywhere.

Two kinds of filters stand for all: one that takes items at random, as regions and availability do, and one that takes
whole lists at random, as categories do, of which a query may know nothing. A point has to hold the floor for both.
"""

from __future__ import annotations

import numpy as np

from indexer.ann.trials import smallest
from indexer.ann.truth import CANDIDATES, Truth, exact_truth, recall
from indexer.contract.ann_index import AnnIndex, each_list
from indexer.contract.features import Floats
from indexer.contract.items import Mask
from indexer.contract.manifest import SearchPoint
from indexer.contract.vector_file import Half

SHARES = (0.3, 0.1, 0.03, 0.01, 0.003)
_QUERIES = 64
_LEAST = 2 * CANDIDATES
"""Items left: a filter that leaves fewer is always scanned."""
_FIRST, _DEEPEST = 1.5, 12.0
"""Of refinement: where there was none; and where no deeper one is tried."""


def filtered_points(
    index: AnnIndex, vectors: Half, queries: Floats, whole: SearchPoint, *, floor: float, seed: int
) -> tuple[SearchPoint, ...]:
    """A point for each of SHARES that leaves enough, most first; each looks at least as wide as the one before."""
    out: list[SearchPoint] = []
    last, few = whole, queries[:_QUERIES]
    for share in SHARES:
        if share * len(vectors) < _LEAST:
            break
        truths = [
            exact_truth(vectors, few, mask=mask, selection=index.select(mask))
            for mask in (random_items(len(vectors), share, seed), whole_lists(index, share, seed))
        ]
        last = _narrowed(index, vectors, truths, last, share, floor)
        out.append(last)
    return tuple(out)


def random_items(items: int, share: float, seed: int) -> Mask:
    """bool [items]: each taken with a chance of `share`."""
    taken: Mask = np.random.default_rng(seed).random(items) < share
    return taken


def whole_lists(index: AnnIndex, share: float, seed: int) -> Mask:
    """bool [n]: the items of lists drawn at random until they are `share` of all."""
    assert index.lists is not None
    rows = dict(each_list(index.lists))
    mask = np.zeros(index.count, np.bool_)
    taken = 0
    for number in np.random.default_rng(seed).permutation(sorted(rows)).tolist():
        if taken >= share * index.count:
            break
        mask[rows[number]] = True
        taken += len(rows[number])
    return mask


def _narrowed(
    index: AnnIndex, vectors: Half, truths: list[Truth], wider: SearchPoint, share: float, floor: float
) -> SearchPoint:
    """The least nprobe from that of `wider` on, and where all lists do not suffice, deeper refinement."""
    assert index.lists is not None
    lists, refine = index.lists.nlist, wider.refine
    while True:

        def lowest(nprobe: int, refine: float = refine) -> float:
            point = SearchPoint(share=share, nprobe=nprobe, refine=refine, recall_at_500=0)
            return min(recall(index, vectors, truth, point).mean for truth in truths)

        nprobe = smallest(lowest, floor, wider.nprobe, lists)
        reached = lowest(nprobe)
        if reached >= floor or refine >= _DEEPEST:
            return SearchPoint(share=share, nprobe=nprobe, refine=refine, recall_at_500=reached)
        refine = max(_FIRST, 2 * refine)
