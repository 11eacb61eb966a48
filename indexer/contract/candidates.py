"""What the ranker is told of blended candidates, made in one way for training and serving.

C candidates in the order of the blend, K events of the session's context, H items of the user's history, both newest
first; n items, d dimensions. Every column is finite, whatever is unknown. Columns compare candidates of one question
by differences, so that nothing depends on the scale of the towers of a given night.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.contract.blend import SOURCES, Blend
from indexer.contract.columns import category_share, co_occurrence, highest, likeness, log_price, padded, price_ratio
from indexer.contract.features import TYPE_WEIGHT, Context
from indexer.contract.history import FEATURES as HISTORY_FEATURES
from indexer.contract.history import History, RepurchaseSpec, history_features, repurchase_scores
from indexer.contract.items import ItemTable, Mask, Rows
from indexer.contract.lists import RowLists
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
_LEAST_POPULARITY = 1e-4


@dataclass(frozen=True, slots=True)
class Shelf:
    """What is known of the items as of one snapshot; arrays may be memory-mapped.

    vectors float16 [n, d]; neighbours int32 [n, K] and similarities float16 [n, K]; price float32 [n] (NaN: unknown);
    category int32 [n] (-1: none); popularity float32 [n], 0..1.
    """

    vectors: npt.NDArray[np.float16]
    neighbours: RowLists
    similarities: RowLists
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
        neighbours: RowLists,
        similarities: RowLists,
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
    return np.asarray(ranker_tensors(shelf, [shopper], [candidates], 1)["features"][0], np.float32)


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
    rows, there = padded([found.rows for found in candidates], np.int32)
    events = [attended(shopper, places) for shopper in shoppers]
    event_rows, event_there = padded([each.rows for each in events], np.int32, least=1)
    types, _ = padded([each.types for each in events], np.int64, least=1)
    vectors, event_vectors = _vectors(shelf, rows, there), _vectors(shelf, event_rows, event_there)
    features = np.zeros((*rows.shape, len(FEATURES)), np.float32)
    if features.size:
        _of_blend(features, candidates)
        _of_vectors(features, shelf, shoppers, rows, there, vectors)
        _of_co_occurrence(features, shelf, shoppers, rows, there)
        _of_items(features, shelf, shoppers, rows)
        _of_question(features, shoppers)
        for at, shopper in enumerate(shoppers):
            if len(shopper.history):
                _of_history(features[at], shelf, shopper, rows[at])
        features[~there] = 0.0
    return {
        "features": features,
        "candidate_vectors": vectors,
        "context_vectors": event_vectors,
        "context_types": types,
        "context_mask": event_there,
        CANDIDATE_MASK: there,
    }


_AT = {name: place for place, name in enumerate(FEATURES)}


def _vectors(shelf: Shelf, rows: Rows, there: Mask) -> Floats:
    out = np.asarray(shelf.vectors[rows], np.float32)
    if not there.all():
        out[~there] = 0.0
    return out


def _of_blend(out: Floats, candidates: Sequence[Blend]) -> None:
    scores, _ = padded([found.scores for found in candidates], np.float32)
    sources, _ = padded([found.sources for found in candidates], np.uint8)
    out[:, :, _AT["blend_score"]] = scores / np.maximum(scores.max(axis=1, keepdims=True, initial=0.0), 1e-12)
    out[:, :, _AT["blend_rank"]] = np.log1p(np.arange(scores.shape[1]))
    for bit, name in SOURCES.items():
        out[:, :, _AT[f"from_{name}"]] = (sources & bit) > 0


def _of_vectors(
    out: Floats, shelf: Shelf, shoppers: Sequence[Shopper], rows: Rows, there: Mask, vectors: Floats
) -> None:
    scores = (vectors @ np.stack([shopper.vector for shopper in shoppers])[:, :, None])[:, :, 0]
    best = np.where(there, scores, -np.inf).max(axis=1, keepdims=True)
    out[:, :, _AT["retrieval"]] = scores - np.where(np.isfinite(best), best, 0.0)
    known, known_there = padded([shopper.context.rows for shopper in shoppers], np.int32)
    before, before_there = padded([shopper.history.rows[:RECENT] for shopper in shoppers], np.int32)
    if known.size:
        like = likeness(vectors, _vectors(shelf, known, known_there))
        out[:, :, _AT["like_context"]] = highest(like, known_there[:, None, :])
        out[:, :, _AT["like_newest"]] = like[:, :, 0]
    if before.size:
        like = likeness(vectors, _vectors(shelf, before, before_there))
        like[rows[:, :, None] == before[:, None, :]] = 0.0
        out[:, :, _AT["like_history"]] = highest(like, before_there[:, None, :])


def _of_co_occurrence(out: Floats, shelf: Shelf, shoppers: Sequence[Shopper], rows: Rows, there: Mask) -> None:
    lists, decay = (shelf.neighbours, shelf.similarities), shelf.near.decay
    newest = [shopper.context.rows[: shelf.near.last] for shopper in shoppers]
    total, out[:, :, _AT["with_best"]] = co_occurrence(*lists, newest, rows, there, decay)
    out[:, :, _AT["with_context"]] = np.log1p(total)
    recent = [shopper.history.rows[:RECENT] for shopper in shoppers]
    out[:, :, _AT["with_history"]] = np.log1p(co_occurrence(*lists, recent, rows, there, decay)[0])


def _of_items(out: Floats, shelf: Shelf, shoppers: Sequence[Shopper], rows: Rows) -> None:
    prices = shelf.price[rows].astype(np.float64)
    out[:, :, _AT["popularity"]] = np.log(np.maximum(shelf.popularity[rows], _LEAST_POPULARITY))
    out[:, :, _AT["price"]] = log_price(prices)
    known, _ = padded([shopper.context.rows for shopper in shoppers], np.int32)
    types, there = padded([shopper.context.types for shopper in shoppers], np.uint8)
    weights = np.where(there, shelf.near.decay ** np.arange(known.shape[1]) * TYPE_WEIGHT[types], 0.0)
    out[:, :, _AT["context_category"]] = category_share(shelf.category[rows], shelf.category[known], weights)
    out[:, :, _AT["context_price"]] = price_ratio(prices, shelf.price[known].astype(np.float64), weights)


def _of_question(out: Floats, shoppers: Sequence[Shopper]) -> None:
    for at, shopper in enumerate(shoppers):
        history = shopper.history
        repeats = 1 - len(history) / max(1, int(history.times.sum())) if len(history) else 0.0
        out[at, :, -len(QUESTION) :] = math.log1p(len(shopper.context)), math.log1p(history.sessions), repeats


def _of_history(out: Floats, shelf: Shelf, shopper: Shopper, rows: Rows) -> None:
    """The columns of one question [C, F] that look at all of a history; the others look at its RECENT latest items."""
    history = shopper.history
    candidate, place = np.nonzero(rows[:, None] == history.rows[None, :])
    features = history_features(history, shopper.day)[place]
    first = _AT["bought"]
    out[candidate, first] = 1.0
    out[candidate, first + 1] = np.log1p(place)
    out[candidate, first + 2] = repurchase_scores(features, shelf.repurchase)
    out[candidate, first + 3 : first + len(HISTORY)] = features
    times, categories = history.times.astype(np.float64)[None], shelf.category[history.rows][None]
    out[:, _AT["history_category"]] = category_share(shelf.category[rows][None], categories, times)[0]
    prices = shelf.price[rows].astype(np.float64)[None], shelf.price[history.rows].astype(np.float64)[None]
    out[:, _AT["history_price"]] = price_ratio(*prices, times)[0]
