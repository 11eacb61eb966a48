"""From a context to numbers: the query vector and the ranker's inputs. One code for training and serving.

A context is what a question knows of the shopper: K items and event types, newest first. Nothing here sees a
clock, a user or an id: the same context gives the same numbers to everyone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.items import ItemTable, Rows
from indexer.contract.manifest import QuerySpec, TensorSpec

Floats = npt.NDArray[np.float32]

TYPE_WEIGHT = np.array([0.0, 0.0, 1.0, 1.0, 2.0, 2.0], np.float32)
"""Weight of an event by its type's number in feed.proto: impression 0; view and click 1; cart and purchase 2."""

FEATURES = ("retrieval_score", "popularity", "same_item_recency", "category_match", "price_ratio")
PRICE_RATIO_CAP = 3.0


@dataclass(frozen=True, slots=True)
class Context:
    """`rows` int32 [K] and `types` uint8 [K], newest first, one entry per item (its latest event)."""

    rows: Rows
    types: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rows)


EMPTY = Context(np.empty(0, np.int32), np.empty(0, np.uint8))


def make_context(rows: list[int], types: list[int], max_events: int) -> Context:
    """A context of events given newest first: the latest event of each item, at most `max_events` items."""
    latest: dict[int, int] = {}
    for row, kind in zip(rows, types, strict=True):
        if len(latest) == max_events:
            break
        latest.setdefault(row, kind)
    return Context(np.array(list(latest), np.int32), np.array(list(latest.values()), np.uint8))


def weights(context: Context, spec: QuerySpec) -> Floats:
    """float32 [K], summing to 1: decay**position times the weight of the event's type."""
    raw = (spec.decay ** np.arange(len(context), dtype=np.float32)) * TYPE_WEIGHT[context.types]
    total = raw.sum()
    return (raw / total if total > 0 else np.full(len(raw), 1 / max(1, len(raw)))).astype(np.float32)


def query_vector(vectors: npt.NDArray[np.float16], context: Context, spec: QuerySpec) -> Floats:
    """float32 [d], of length 1: the recency-weighted mean of the context's item vectors.

    `vectors` float16 [n, d], one row an item. A mean of length 0 (opposite vectors) stays 0.
    """
    mean = weights(context, spec) @ vectors[context.rows].astype(np.float32)
    norm = float(np.linalg.norm(mean))
    return np.asarray(mean / norm if norm > 0 else mean, np.float32)


def candidate_features(items: ItemTable, context: Context, spec: QuerySpec, rows: Rows, scores: Floats) -> Floats:
    """float32 [C, 5], columns as in FEATURES, all finite, for candidates `rows` int32 [C] with `scores` float32 [C].

    retrieval_score     inner product of query and item vector, as retrieved
    popularity          the item's time-decayed popularity, 0..1
    same_item_recency   decay**position of the item in the context, 0 when it is not there
    category_match      share of the context's weight that has the item's category, 0..1
    price_ratio         |ln(price / weighted mean price of the context)|, at most 3; 0 when either is unknown or zero
    """
    share = weights(context, spec)
    out = np.zeros((len(rows), len(FEATURES)), np.float32)
    out[:, 0] = scores
    out[:, 1] = items.popularity[rows]
    if len(context):
        same = rows[:, None] == context.rows[None, :]
        out[:, 2] = same.astype(np.float32) @ (spec.decay ** np.arange(len(context), dtype=np.float32))
        category = items.category[rows]
        match = (category[:, None] == items.category[context.rows][None, :]) & (category >= 0)[:, None]
        out[:, 3] = match.astype(np.float32) @ share
        out[:, 4] = _price_ratio(items.price[rows], items.price[context.rows], share)
    return out


def ranker_inputs(columns: tuple[TensorSpec, ...], features: list[Floats]) -> dict[str, Floats]:
    """The tensors that the manifest's ranker declares, for a batch: `features` holds one [C_i, F] per question.

    Questions with fewer candidates are padded with zeros to the longest, [B, max C, F]; scores of the padding are
    to be ignored. Raises ValueError naming a declared input that this version cannot make.
    """
    out: dict[str, Floats] = {}
    for spec in columns:
        if spec.name != "features" or spec.columns != FEATURES:
            declared = f"ranker input {spec.name!r} with columns {list(spec.columns)}"
            raise ValueError(f"{declared} is not known to this version")
        padded = np.zeros((len(features), max(map(len, features)), len(FEATURES)), np.float32)
        for at, block in enumerate(features):
            padded[at, : len(block)] = block
        out[spec.name] = padded
    return out


def _price_ratio(prices: Floats, context_prices: Floats, share: Floats) -> Floats:
    ratio = np.zeros(len(prices), np.float32)
    known = np.isfinite(context_prices) & (context_prices > 0) & (share > 0)
    if known.any():
        mean = np.average(context_prices[known].astype(np.float64), weights=share[known].astype(np.float64))
        comparable = np.isfinite(prices) & (prices > 0)
        distance = np.abs(np.log(prices[comparable].astype(np.float64)) - np.log(mean))
        ratio[comparable] = np.minimum(distance, PRICE_RATIO_CAP)
    return ratio
