"""What the ranker is told of blended candidates, made in one way for training and serving.

C candidates in the order of the blend, K events of the session's context, H items of the user's history, both newest
first; n items, d dimensions. Every column is finite, whatever is unknown. Columns compare candidates of one question
by differences, so that nothing depends on the scale of the towers of a given night.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.blend import SOURCES, Blend
from indexer.contract.features import TYPE_WEIGHT, Context
from indexer.contract.history import FEATURES as HISTORY_FEATURES
from indexer.contract.history import History, RepurchaseSpec, history_features, repurchase_scores
from indexer.contract.items import ItemTable, Rows
from indexer.contract.manifest import SourcesSpec, TensorSpec
from indexer.contract.neighbours import NeighbourSpec
from indexer.contract.towers import tower_context

Floats = npt.NDArray[np.float32]

BLEND = ("blend_score", "blend_rank", "from_ann", "from_neighbours", "from_history")
VECTORS = ("retrieval", "like_context", "like_newest", "like_history")
CO_OCCURRENCE = ("with_context", "with_best", "with_history")
HISTORY = ("bought", "bought_position", "repurchase", *HISTORY_FEATURES)
ITEMS = ("popularity", "context_category", "history_category", "price", "context_price", "history_price")
QUESTION = ("context_size", "history_size", "repeat_rate")
FEATURES = (*BLEND, *VECTORS, *CO_OCCURRENCE, *HISTORY, *ITEMS, *QUESTION)
"""The columns of `blended_features`, in order.

blend_score        the blend's score over that of the first candidate
blend_rank         ln(1 + place in the blend)
from_*             1 where the source names the candidate
retrieval          inner product of session and item vector, less the highest one of the candidates
like_context       highest cosine of the candidate's vector and one of the context's items
like_newest        cosine with the newest item of the context
like_history       highest cosine with one of the RECENT latest items of the history
with_context       ln(1 + co-occurrence), summed over the newest items of the context, decay**position each
with_best          highest co-occurrence with one of them
with_history       ln(1 + co-occurrence), summed over the RECENT latest items of the history, decay**position each
bought             1 where the history has the candidate; 0 in this and the following eight columns where it has not
bought_position    ln(1 + place in the history)
repurchase         ln of the odds that it is bought again
times ...          as in history.FEATURES
popularity         ln of the popularity (0..1), at least ln 1e-4
context_category   share of the context's weight that has the candidate's category
history_category   share of the history's purchases that have it
price              ln of the price, 0 when unknown
context_price      ln(price / mean price of the context), -3..3; 0 when either is unknown
history_price      the same of the history
context_size       ln(1 + K)
history_size       ln(1 + sessions of the history)
repeat_rate        share of the history's purchases that were not the first of their item
"""

INPUTS = ("features", "candidate_vectors", "context_vectors", "context_types", "context_mask")
CANDIDATE_MASK = "candidate_mask"
"""A sixth input, of rankers that look at all candidates of a question before they score one: which are not padding."""
OUTPUT = "scores"
"""Of the ranker's ONNX model: see `ranker_tensors`; scores float32 [batch, candidates], higher is better."""
RECENT = 20
_RATIO = 3.0
_LEAST_POPULARITY = 1e-4


@dataclass(frozen=True, slots=True)
class Shelf:
    """What is known of the items as of one snapshot; arrays may be memory-mapped.

    vectors float16 [n, d]; neighbours int32 [n, K] and similarities float16 [n, K]; price float32 [n] (NaN: unknown);
    category int32 [n] (-1: none); popularity float32 [n], 0..1.
    """

    vectors: npt.NDArray[np.float16]
    neighbours: Rows
    similarities: npt.NDArray[np.float16]
    price: Floats
    category: Rows
    popularity: Floats
    near: NeighbourSpec
    repurchase: RepurchaseSpec

    @classmethod
    def of(
        cls,
        items: ItemTable,
        vectors: npt.NDArray[np.float16],
        neighbours: Rows,
        similarities: npt.NDArray[np.float16],
        sources: SourcesSpec,
    ) -> Shelf:
        """The shelf of a snapshot."""
        known = items.price, items.category, items.popularity
        return cls(vectors, neighbours, similarities, *known, sources.neighbours, sources.repurchase)


@dataclass(frozen=True, slots=True)
class Shopper:
    """Who asks: the session's context, the history before `day` (days since 1970), the session vector float32 [d]."""

    context: Context
    history: History
    day: float
    vector: Floats


def blended_features(shelf: Shelf, shopper: Shopper, candidates: Blend) -> Floats:
    """float32 [C, F], columns as in FEATURES, all finite; `candidates` is the blend cut at the ranker's depth."""
    rows, context, history = candidates.rows, shopper.context, shopper.history
    parts = (
        _of_blend(candidates),
        _of_vectors(shelf, shopper, rows),
        _of_co_occurrence(shelf, context.rows, history.rows, rows),
        _of_history(history, shopper.day, shelf.repurchase, rows),
        _of_items(shelf, context, history, rows),
        _of_question(context, history, len(rows)),
    )
    return np.concatenate(parts, axis=1)


def require_known(inputs: Sequence[TensorSpec]) -> None:
    """Raises ValueError naming an input that a ranker declares and `ranker_tensors` does not make."""
    for spec in inputs:
        if spec.name not in (*INPUTS, CANDIDATE_MASK) or (spec.name == "features" and spec.columns != FEATURES):
            declared = f"ranker input {spec.name!r} with columns {list(spec.columns)}"
            raise ValueError(f"{declared} is not known to this version")


def attended(shopper: Shopper, places: int) -> Context:
    """The events that the ranker attends to: the context, then the history as events of type towers.BEFORE."""
    return tower_context(shopper.context, shopper.history.rows, places)


def ranker_tensors(
    shelf: Shelf, shoppers: Sequence[Shopper], candidates: Sequence[Blend], places: int
) -> dict[str, npt.NDArray[np.generic]]:
    """The inputs of rankers for a batch, by the names of INPUTS and CANDIDATE_MASK; each takes what it declares.

    features float32 [batch, candidates, F], candidate_vectors float32 [batch, candidates, d], context_vectors float32
    [batch, context, d], context_types int64 and context_mask bool [batch, context] (True: an event stands here), newest
    first, candidate_mask bool [batch, candidates] (True: a candidate stands here). Questions are padded with zeros to
    the most candidates and the longest context, at most `places` events, at least one; scores of padded candidates are
    to be ignored.
    """
    events = [attended(shopper, places) for shopper in shoppers]
    longest = max(1, *map(len, events)) if events else 1
    most = max(map(len, candidates), default=0)
    out: dict[str, npt.NDArray[np.generic]] = {
        "features": np.zeros((len(shoppers), most, len(FEATURES)), np.float32),
        "candidate_vectors": np.zeros((len(shoppers), most, shelf.vectors.shape[1]), np.float32),
        "context_vectors": np.zeros((len(shoppers), longest, shelf.vectors.shape[1]), np.float32),
        "context_types": np.zeros((len(shoppers), longest), np.int64),
        "context_mask": np.zeros((len(shoppers), longest), np.bool_),
        CANDIDATE_MASK: np.zeros((len(shoppers), most), np.bool_),
    }
    for at, (shopper, found, context) in enumerate(zip(shoppers, candidates, events, strict=True)):
        out["features"][at, : len(found)] = blended_features(shelf, shopper, found)
        out["candidate_vectors"][at, : len(found)] = shelf.vectors[found.rows]
        out["context_vectors"][at, : len(context)] = shelf.vectors[context.rows]
        out["context_types"][at, : len(context)] = context.types
        out["context_mask"][at, : len(context)] = True
        out[CANDIDATE_MASK][at, : len(found)] = True
    return out


def _of_blend(candidates: Blend) -> Floats:
    out = np.empty((len(candidates), len(BLEND)), np.float32)
    out[:, 0] = candidates.scores / max(float(candidates.scores.max(initial=0.0)), 1e-12)
    out[:, 1] = np.log1p(np.arange(len(candidates)))
    for column, bit in enumerate(SOURCES, start=2):
        out[:, column] = (candidates.sources & bit) > 0
    return out


def _of_vectors(shelf: Shelf, shopper: Shopper, rows: Rows) -> Floats:
    out = np.zeros((len(rows), len(VECTORS)), np.float32)
    if not len(rows):
        return out
    items = shelf.vectors[rows].astype(np.float32)
    scores = items @ shopper.vector
    out[:, 0] = scores - scores.max()
    known, before = shopper.context.rows, shopper.history.rows[:RECENT]
    likeness = _unit(items) @ _unit(shelf.vectors[np.concatenate([known, before])].astype(np.float32)).T
    if len(known):
        out[:, 1] = likeness[:, : len(known)].max(axis=1)
        out[:, 2] = likeness[:, 0]
    if len(before):
        other = before[None, :] != rows[:, None]
        out[:, 3] = np.where(other, likeness[:, len(known) :], 0.0).max(axis=1)
    return out


def _of_co_occurrence(shelf: Shelf, context: Rows, history: Rows, rows: Rows) -> Floats:
    out = np.empty((len(rows), len(CO_OCCURRENCE)), np.float32)
    total, out[:, 1] = _co_occurrence(shelf, context[: shelf.near.last], rows)
    out[:, 0] = np.log1p(total)
    out[:, 2] = np.log1p(_co_occurrence(shelf, history[:RECENT], rows)[0])
    return out


def _co_occurrence(shelf: Shelf, known: Rows, rows: Rows) -> tuple[Floats, Floats]:
    """Sum weighted by recency, and maximum, over the neighbour lists of `known`: float32 [C] each."""
    order = np.argsort(rows, kind="stable")
    ids = shelf.neighbours[known]
    place = np.minimum(np.searchsorted(rows, ids.ravel(), sorter=order), max(0, len(rows) - 1)).reshape(ids.shape)
    total, best = np.zeros(len(rows), np.float32), np.zeros(len(rows), np.float32)
    if not len(rows) or not ids.size:
        return total, best
    at = order[place]
    event, column = np.nonzero(rows[at] == ids)
    similar = shelf.similarities[known][event, column].astype(np.float32)
    decay = (shelf.near.decay ** np.arange(len(known))).astype(np.float32)
    np.add.at(total, at[event, column], similar * decay[event])
    np.maximum.at(best, at[event, column], similar)
    return total, best


def _of_history(history: History, day: float, spec: RepurchaseSpec, rows: Rows) -> Floats:
    out = np.zeros((len(rows), len(HISTORY)), np.float32)
    candidate, place = np.nonzero(rows[:, None] == history.rows[None, :])
    features = history_features(history, day)[place]
    out[candidate, 0] = 1.0
    out[candidate, 1] = np.log1p(place)
    out[candidate, 2] = repurchase_scores(features, spec)
    out[candidate, 3:] = features
    return out


def _of_items(shelf: Shelf, context: Context, history: History, rows: Rows) -> Floats:
    out = np.zeros((len(rows), len(ITEMS)), np.float32)
    out[:, 0] = np.log(np.maximum(shelf.popularity[rows], _LEAST_POPULARITY))
    known = (shelf.near.decay ** np.arange(len(context)) * TYPE_WEIGHT[context.types]).astype(np.float64)
    times = history.times.astype(np.float64)
    price = shelf.price[rows].astype(np.float64)
    priced = np.isfinite(price) & (price > 0)
    out[priced, 3] = np.log(price[priced])
    for column, (of, weights) in enumerate(((context.rows, known), (history.rows, times)), start=1):
        out[:, column] = _category_share(shelf.category[rows], shelf.category[of], weights)
        mean = _mean_price(shelf.price[of].astype(np.float64), weights)
        if mean > 0:
            out[priced, 3 + column] = np.clip(np.log(price[priced] / mean), -_RATIO, _RATIO)
    return out


def _of_question(context: Context, history: History, count: int) -> Floats:
    bought = max(1, int(history.times.sum()))
    sizes = np.log1p(len(context)), np.log1p(history.sessions), 1 - len(history) / bought if len(history) else 0.0
    return np.tile(np.array(sizes, np.float32), (count, 1))


def _category_share(wanted: Rows, found: Rows, weights: npt.NDArray[np.float64]) -> Floats:
    total = float(weights.sum())
    if total <= 0:
        return np.zeros(len(wanted), np.float32)
    names, place = np.unique(found, return_inverse=True)
    shares = np.bincount(place, weights=weights, minlength=len(names)) / total
    at = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    return np.where((names[at] == wanted) & (wanted >= 0), shares[at], 0.0).astype(np.float32)


def _mean_price(prices: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> float:
    known = np.isfinite(prices) & (prices > 0) & (weights > 0)
    return float(np.average(prices[known], weights=weights[known])) if known.any() else 0.0


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6), np.float32)
