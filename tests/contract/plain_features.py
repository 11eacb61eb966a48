"""The ranker's features of one question, column by column and without a thought for speed: what they should be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from indexer.contract.blend import SOURCES, Blend
from indexer.contract.candidates import BLEND, CO_OCCURRENCE, HISTORY, ITEMS, RECENT, VECTORS, Shelf, Shopper
from indexer.contract.features import TYPE_WEIGHT, Context, Floats
from indexer.contract.history import History, RepurchaseSpec, history_features, repurchase_scores
from indexer.contract.items import Rows

_RATIO = 3.0
_LEAST_POPULARITY = 1e-4


def plain_features(shelf: Shelf, shopper: Shopper, candidates: Blend) -> Floats:
    """As `candidates.blended_features`: float32 [C, F]."""
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
