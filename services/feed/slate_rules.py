"""The rules of the slate: near-duplicates, caps and marginal relevance. They choose the order and drop nothing.

A page is filled by one pass over the candidates in ranked order, place by place. At each place

1. a candidate that is a near-duplicate of an item on this page or on an earlier one is passed over, so that the best
   ranked of a group stays;
2. a candidate of a category or a brand that has as many items on this page as its cap allows is passed over;
3. of those left, the one with the highest marginal relevance is taken; with `mmr` = 1 the best ranked.

What was passed over stands behind all others: it fills the page only when nothing else is left, near-duplicates first,
then what is over a cap. So a cap holds as long as other candidates are left; with both caps set, a different choice
could sometimes fill a page that this one cannot, since it does not look ahead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from indexer.contract.features import Floats
from indexer.contract.items import ItemTable, Mask, Rows

Vectors = npt.NDArray[np.float16]
Places = npt.NDArray[np.intp]
_ROUNDING = 1e-6
NearDuplicates = Literal["off", "text", "vectors", "either", "both"]


@dataclass(frozen=True, slots=True)
class Rules:
    """`near_duplicates`: items of equal text, items whose vectors have a cosine of `similarity` or more, either, or
    both at once. `category_cap`, `brand_cap`: items on a page at most, 0: any number; items without a category or brand
    are never too many. `mmr`: the weight of relevance against novelty, 1: relevance alone.
    """

    near_duplicates: NearDuplicates = "off"
    similarity: float = 1.0
    category_cap: int = 0
    brand_cap: int = 0
    mmr: float = 1.0

    @property
    def off(self) -> bool:
        """Whether they leave every ranking as it is."""
        return self.near_duplicates == "off" and not self.category_cap and not self.brand_cap and self.mmr >= 1

    def within_category(self) -> Rules:
        """For a page of one category, whose cap could not hold: the same without it."""
        return replace(self, category_cap=0)

    def caps_alone(self) -> Rules:
        """The same without near-duplicates and marginal relevance."""
        return Rules(category_cap=self.category_cap, brand_cap=self.brand_cap)


@dataclass(frozen=True, slots=True)
class Diversity:
    """The rules, and what they look at, by row: `variant`, `category` and `brand` int32 [n] as in ItemTable; `vectors`
    float16 [n, d] of any length, may be memory-mapped. None: no two items are similar, as far as is known.
    """

    rules: Rules
    variant: Rows
    category: Rows
    brand: Rows
    vectors: Vectors | None

    @classmethod
    def of(cls, rules: Rules, items: ItemTable, vectors: Vectors | None) -> Diversity:
        """The rules over the items of a snapshot."""
        return cls(rules, items.variant, items.category, items.brand, vectors)


def pick(rows: Rows, scores: Floats, count: int, by: Diversity, *, page: Rows, shown: Rows) -> Places:
    """Places in `rows`, int [at most count], in the order in which they are to follow the rows of `page`.

    rows int32 [m] distinct, best first, scores float32 [m]; page int32: already on this page; shown int32: on earlier
    ones. Fewer than `count` when the rules pass over the rest. Costs O(m (m + page + shown) d) where vectors are used.
    """
    caps = [(codes, cap, Counter(codes[page].tolist())) for codes, cap in _caps(by)]
    over = np.zeros(len(rows), np.bool_)
    for codes, cap, used in caps:
        over |= np.isin(codes[rows], [code for code, times in used.items() if code >= 0 and times >= cap])
    places = np.flatnonzero(~over)
    if not len(places) or count <= 0:
        return places[:0]
    rows, weight = rows[places], by.rules.mmr
    before = np.concatenate([shown, page])
    if by.rules.near_duplicates == "both" and weight >= 1:
        before = before[np.isin(by.variant[before], by.variant[rows])]
    others, own = np.concatenate([before, rows]), len(before)
    like = _cosines(by, rows, others)
    near = _near_duplicates(by, rows, others, like)
    passed = np.asarray(near[:, :own].any(axis=1), np.bool_)
    blocks = np.count_nonzero(near[:, own:], axis=1) > 1
    closest = like[:, :own].max(axis=1, initial=-1.0)
    relevance = _relevance(scores[places])
    chosen: list[int] = []
    while len(chosen) < count:
        at = int(np.argmin(passed)) if weight >= 1 else _most_marginal(weight, relevance, closest, passed)
        if passed[at]:
            break
        chosen.append(at)
        passed[at] = True
        if blocks[at]:
            passed |= near[at, own:]
        if weight < 1:
            np.maximum(closest, like[at, own:], out=closest)
        for codes, cap, used in caps:
            code = int(codes[rows[at]])
            used[code] += 1
            if code >= 0 and used[code] >= cap:
                passed |= codes[rows] == code
    return places[chosen]


def _caps(by: Diversity) -> list[tuple[Rows, int]]:
    caps = (by.category, by.rules.category_cap), (by.brand, by.rules.brand_cap)
    return [(codes, cap) for codes, cap in caps if cap > 0]


def _near_duplicates(by: Diversity, rows: Rows, others: Rows, like: Floats) -> Mask:
    """bool [m, o]: which of the rows are near-duplicates of which others, themselves included."""
    which = by.rules.near_duplicates
    same: Mask = by.variant[rows][:, None] == by.variant[others][None, :]
    similar: Mask = like >= by.rules.similarity - _ROUNDING
    match which:
        case "off":
            return np.zeros(same.shape, np.bool_)
        case "text":
            return same
        case "vectors":
            return similar
        case "either":
            return same | similar
        case "both":
            return same & similar


def _cosines(by: Diversity, rows: Rows, others: Rows) -> Floats:
    """float32 [m, o] of the stored vectors, `others` ending in `rows`; -1 where no rule asks for them and where they
    are not known. A vector of zeros is like none."""
    if by.vectors is None or (by.rules.mmr >= 1 and by.rules.near_duplicates in {"off", "text"}):
        return np.full((len(rows), len(others)), -1.0, np.float32)
    vectors = by.vectors[others].astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)
    return np.asarray(vectors[len(others) - len(rows) :] @ vectors.T, np.float32)


def _relevance(scores: Floats) -> npt.NDArray[np.float64]:
    """The scores stretched to 0..1; all 0 when they are equal."""
    wide = scores.astype(np.float64)
    low, high = wide.min(), wide.max()
    return np.asarray((wide - low) / (high - low) if high > low else np.zeros(len(wide)), np.float64)


def _most_marginal(weight: float, relevance: npt.NDArray[np.float64], closest: Floats, passed: Mask) -> int:
    """Maximal marginal relevance: weight relevance - (1 - weight) highest cosine with what was taken, equal ones by
    rank (Carbonell and Goldstein, 1998)."""
    value = weight * relevance - (1 - weight) * closest
    return int(np.argmax(np.where(passed, -np.inf, value)))
