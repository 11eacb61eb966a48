"""Columns of features for a batch of questions at once, out of plain arrays; `candidates` says what they mean.

B questions, padded to C candidates and K known items; padding is row 0 and False in the mask. Nothing here costs more
than the batch: no array is as long as the catalogue.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from indexer.contract.items import Mask, Rows
from indexer.contract.lists import RowLists

Floats = npt.NDArray[np.float32]
Wide = npt.NDArray[np.float64]
_SIEVE = 4096
"""A power of two. Of the items that are no candidate, about C in so many pass the sieve and are looked up."""
_RATIO = 3.0


def padded(lists: Sequence[npt.NDArray[np.generic]], dtype: npt.DTypeLike, least: int = 0) -> tuple[npt.NDArray, Mask]:  # type: ignore[type-arg]
    """Arrays [k_i] below one another, filled up with zeros, and a mask of what is no filling: [B, most], two arrays.

    `least`: the length that they have at least.
    """
    lengths = np.fromiter(map(len, lists), np.intp, len(lists))
    mask = np.arange(max(least, int(lengths.max(initial=0)))) < lengths[:, None]
    out = np.zeros(mask.shape, dtype)
    if len(lists):
        out[mask] = np.concatenate(lists)
    return out, mask


def likeness(items: Floats, known: Floats) -> Floats:
    """Cosines float32 [B, C, K] of vectors [B, C, d] and [B, K, d]; 0 where one of them has no length."""
    products = items @ known.transpose(0, 2, 1)
    products /= _lengths(items)[:, :, None]
    products /= _lengths(known)[:, None, :]
    return np.asarray(products, np.float32)


def highest(values: Floats, counted: Mask) -> Floats:
    """float32 [B, C]: the highest of values [B, C, K] that count, 0 where none does."""
    if not values.shape[2]:
        return np.zeros(values.shape[:2], np.float32)
    best = np.where(counted, values, -np.inf).max(axis=2)
    return np.where(np.isfinite(best), best, 0.0).astype(np.float32)


def co_occurrence(
    neighbours: RowLists,
    similarities: RowLists,
    known: Sequence[Rows],
    rows: Rows,
    there: Mask,
    decay: float,
) -> tuple[Floats, Floats]:
    """Sum weighted by decay**position, and maximum, over the neighbour lists of each question's `known` items, newest
    first: float32 [B, C] each. `rows` int32 [B, C], `there` bool [B, C]; `neighbours` and `similarities` [n, N].
    """
    total, best = np.zeros(rows.shape, np.float32), np.zeros(rows.shape, np.float32)
    flat = np.concatenate(known) if known else np.empty(0, np.int32)
    if not len(flat) or not there.any():
        return total, best
    lengths = np.fromiter(map(len, known), np.intp, len(known))
    question = np.repeat(np.arange(len(known)), lengths)
    position = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    ids = np.asarray(neighbours[flat])
    event, column = np.nonzero(_sieve(rows, there).take((ids & (_SIEVE - 1)) + (question * _SIEVE)[:, None]))
    wanted = question[event] * len(neighbours) + ids[event, column]
    keys = np.flatnonzero(there)
    offered = (np.arange(len(rows))[:, None] * len(neighbours) + rows).ravel()[keys]
    order = np.argsort(offered)
    place = np.minimum(np.searchsorted(offered, wanted, sorter=order), len(order) - 1)
    hit = (offered[order[place]] == wanted) & (ids[event, column] >= 0)
    event, column, at = event[hit], column[hit], keys[order[place[hit]]]
    similar = similarities[flat[event], column].astype(np.float32)
    weights = similar * (decay ** position[event]).astype(np.float32)
    total += np.bincount(at, weights=weights, minlength=rows.size).reshape(rows.shape).astype(np.float32)
    np.maximum.at(best.ravel(), at, similar)
    return total, best


def category_share(wanted: Rows, found: Rows, weights: Wide) -> Floats:
    """Share of the weight [B, K] of `found` int32 [B, K] that has the category of `wanted` int32 [B, C]; 0 without one
    (below 0) and where nothing weighs anything."""
    total = weights.sum(axis=1, keepdims=True)
    same = (wanted[:, :, None] == found[:, None, :]) @ weights[:, :, None]
    share = same[:, :, 0] / np.where(total > 0, total, 1.0)
    return np.where((wanted >= 0) & (total > 0), share, 0.0).astype(np.float32)


def price_ratio(prices: Wide, known: Wide, weights: Wide) -> Floats:
    """ln(price / mean price of the known items by their weights), -3..3: float32 [B, C] of [B, C], [B, K] and [B, K].

    0 where either is unknown: a price that is no number above 0.
    """
    counted = np.where(_priced(known) & (weights > 0), weights, 0.0)
    total = counted.sum(axis=1, keepdims=True)
    mean = (np.where(counted > 0, known, 0.0) * counted).sum(axis=1, keepdims=True) / np.where(total > 0, total, 1.0)
    both = _priced(prices) & (mean > 0)
    ratio = np.log(np.where(both, prices, 1.0) / np.where(mean > 0, mean, 1.0))
    return np.where(both, np.clip(ratio, -_RATIO, _RATIO), 0.0).astype(np.float32)


def log_price(prices: Wide) -> Floats:
    """ln of the prices, 0 where they are unknown."""
    return np.log(np.where(_priced(prices), prices, 1.0)).astype(np.float32)


def _priced(prices: Wide) -> Mask:
    return np.asarray(np.isfinite(prices) & (prices > 0), np.bool_)


def _lengths(vectors: Floats) -> Floats:
    return np.asarray(np.maximum(np.sqrt(np.einsum("bkd,bkd->bk", vectors, vectors)), 1e-6), np.float32)


def _sieve(rows: Rows, there: Mask) -> Mask:
    """bool [B * _SIEVE]: whether a candidate of the question may end in these bits."""
    table = np.zeros((len(rows), _SIEVE), np.bool_)
    question, column = np.nonzero(there)
    table[question, rows[question, column] & (_SIEVE - 1)] = True
    return table.ravel()
