"""The first page under each rule of the slate, for rankings that were served: what a rule would change, and cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fallback.ladder import Rung
from indexer.contract.blend import ANN
from indexer.contract.features import Floats
from indexer.contract.items import ItemTable, Rows
from services.feed.slate import Segment, build_slate
from services.feed.slate_rules import Diversity, Rules, Vectors

RULES = {
    "equal_text": Rules("text"),
    "cosine_0.99": Rules("vectors", 0.99),
    "equal_text_and_cosine_0.99": Rules("both", 0.99),
    "category_cap_5": Rules(category_cap=5),
    "category_cap_3": Rules(category_cap=3),
    "brand_cap_5": Rules(brand_cap=5),
    "brand_cap_3": Rules(brand_cap=3),
    "mmr_0.9": Rules(mmr=0.9),
}
"""By the name under which a report has them; each by itself."""
_PAGE = 20


def first_pages(items: ItemTable, vectors: Vectors, rankings: Sequence[tuple[Rows, Floats]]) -> dict[str, list[Rows]]:
    """By rule, of each ranking (rows int32 [m], best first, scores float32 [m], never rising) the first 20 rows."""
    everything = np.ones(items.count, np.bool_)

    def page(rows: Rows, scores: Floats, by: Diversity) -> Rows:
        segment = Segment(Rung.RANKED, rows, scores, np.full(len(rows), ANN, np.uint8))
        return build_slate([segment], eligible=everything, hidden=(), size=_PAGE, diversity=by).rows

    rules = {name: Diversity.of(one, items, vectors) for name, one in RULES.items()}
    return {name: [page(rows, scores, by) for rows, scores in rankings] for name, by in rules.items()}
