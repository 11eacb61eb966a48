"""What is fitted to a real catalogue and its purchases, for a synthetic one of any size.

Prices by aisle and amount; purchases by aisle; a Zipf-Mandelbrot law of popularity within an aisle; session lengths,
sessions a user, and the share of purchases of what the user bought before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from indexer.bench.counted import Counted, Floats, Ints
from indexer.bench.texts import Texts, fit_texts

AMOUNT_POWER = 0.6
"""A pack twice as large costs 1.5 times as much."""
_SHARES = np.logspace(-4, 0, 41)
_POWERS = np.arange(0.5, 2.5, 0.05)
_OFFSETS = np.logspace(-6, 0, 37)


@dataclass(frozen=True, slots=True)
class Zipf:
    """Popularity by rank within a group: proportional to (x + offset) ** -power, x the rank as a share of the group."""

    power: float
    offset: float

    def quantile(self, share: Floats) -> Floats:
        """The x below which `share` of the purchases lie; float64 in [0, 1)."""
        to = 1 - self.power
        low, high = self.offset**to, (1 + self.offset) ** to
        x: Floats = (low + share * (high - low)) ** (1 / to) - self.offset
        return np.clip(x, 0.0, np.nextafter(1.0, 0.0))

    def below(self, x: Floats) -> Floats:
        """The share of purchases among the first `x` of a group; the inverse of `quantile`."""
        to = 1 - self.power
        low, high = self.offset**to, (1 + self.offset) ** to
        share: Floats = ((x + self.offset) ** to - low) / (high - low)
        return share


@dataclass(frozen=True, slots=True)
class Shop:
    """A aisles, T texts as in `Texts`.

    `priced`: prices sorted within each aisle, `priced_start` int64 [A + 1]; `unpriced` float64 [A]: share of items
    without. `dearness` float64 [T]: price of a text's size to that of the middle size of its aisle. `bought` float64
    [A]: share of the purchases. `lengths` int64: events of each real session, sorted; `visits` int64: sessions of each
    user, sorted. `repeated`: share of purchases of what the user bought before. `first`, `last`: microseconds UTC.
    """

    texts: Texts
    priced: Floats
    priced_start: Ints
    unpriced: Floats
    dearness: Floats
    bought: Floats
    popularity: Zipf
    lengths: Ints
    visits: Ints
    repeated: float
    regions: tuple[str, ...]
    first: int
    last: int

    def prices(self, random: Counted, text: Ints, family: Ints, item: Ints) -> pa.Array:
        """Of each item, float64 [n]: drawn once for a family, scaled by the text's size; null as often as there."""
        aisle = self.texts.aisle[text]
        start = self.priced_start[aisle]
        count = self.priced_start[aisle + 1] - start
        base = self.priced[np.minimum(start + random.below(count, "price", family), len(self.priced) - 1)]
        known = (count > 0) & (random.share("priced", item) >= self.unpriced[aisle])
        return pa.array(np.maximum(np.round(base * self.dearness[text], 2), 0.01), mask=~known)


def fit_shop(catalogue: pa.Table, events: pa.Table) -> Shop:
    """Of tables with the columns that the job reads; every event is a purchase. Raises ValueError on an empty one.

    Events of items that the catalogue lacks are left out.
    """
    events = events.filter(pc.is_in(events["item_id"], catalogue["item_id"].combine_chunks()))
    if not catalogue.num_rows or not events.num_rows:
        raise ValueError("a catalogue and its events are expected, not empty tables")
    texts = fit_texts(catalogue)
    aisle = _aisle_of_items(catalogue, texts)
    price = catalogue["price"].fill_null(np.nan).to_numpy()
    order = np.lexsort((price, aisle))
    order = order[~np.isnan(price[order])]
    count = len(texts.categories)
    item, session, user = (_codes(events[name]) for name in ("item_id", "session_id", "user_id"))
    where = pc.index_in(events["item_id"].combine_chunks().dictionary_encode().dictionary, catalogue["item_id"])
    row = where.to_numpy(zero_copy_only=False)[item].astype(np.int64)
    moments = events["occurred_at"].cast(pa.int64())
    return Shop(
        texts=texts,
        priced=price[order],
        priced_start=np.searchsorted(aisle[order], np.arange(count + 1)),
        unpriced=np.bincount(aisle, np.isnan(price), count) / np.bincount(aisle, minlength=count),
        dearness=_dearness(texts),
        bought=np.bincount(aisle[row], minlength=count) / len(row),
        popularity=_fit_zipf(np.bincount(row, minlength=catalogue.num_rows), aisle),
        lengths=np.sort(np.bincount(session)),
        visits=np.sort(np.bincount(user[np.unique(session, return_index=True)[1]])),
        repeated=_repeated(user, item, session),
        regions=tuple(sorted(set(pc.unique(events["region"]).to_pylist()))),
        first=pc.min(moments).as_py(),
        last=pc.max(moments).as_py(),
    )


def in_group_shares(bought: Ints, group: Ints) -> Floats:
    """Share of the purchases among the first x of the items of each group, by rank; float64 [41], x 1e-4 .. 1."""
    order = np.lexsort((-bought, group))
    sizes = np.bincount(group)
    starts = np.cumsum(sizes) - sizes
    ranked = group[order]
    share = (np.arange(len(order)) - starts[ranked] + 0.5) / sizes[ranked]
    weight = np.cumsum(np.bincount(np.searchsorted(_SHARES, share), bought[order], len(_SHARES))[: len(_SHARES)])
    found: Floats = weight / weight[-1]
    return found


def _fit_zipf(bought: Ints, group: Ints) -> Zipf:
    """The law whose shares differ least from those found, at the greatest difference over all x."""
    found = in_group_shares(bought, group)
    laws = [Zipf(float(power), float(offset)) for power in _POWERS for offset in _OFFSETS if abs(power - 1) > 1e-9]
    return min(laws, key=lambda law: float(np.abs(law.below(_SHARES) - found).max()))


def _repeated(user: Ints, item: Ints, session: Ints) -> float:
    """Share of the purchases whose user has the item in an earlier session (sessions stand in the order of time)."""
    pair = user * (int(item.max()) + 1) + item
    order = np.lexsort((session, pair))
    again = (pair[order][1:] == pair[order][:-1]) & (session[order][1:] != session[order][:-1])
    return float(again.sum() / len(pair))


def _dearness(texts: Texts) -> Floats:
    """Of each text: (its amount / the median amount of its aisle) ** AMOUNT_POWER, within 1/2 and 2."""
    amounts = [_amount(size) for size in texts.sizes.to_pylist()]
    amount = np.array([*amounts, np.nan])[texts.size]
    middle = np.array([_median(amount[texts.aisle == each]) for each in range(len(texts.categories))])
    ratio = np.where(np.isnan(amount), 1.0, amount) / np.where(np.isnan(amount), 1.0, middle[texts.aisle])
    return np.clip(ratio**AMOUNT_POWER, 0.5, 2.0)


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else 1.0


def _amount(size: str | None) -> float:
    """The first number of a size; NaN when it has none."""
    found = re.search(r"\d*\.?\d+", size or "")
    return (float(found[0]) or float("nan")) if found else float("nan")


def _aisle_of_items(catalogue: pa.Table, texts: Texts) -> Ints:
    numbers = {
        pair: at
        for at, pair in enumerate(zip(texts.departments.to_pylist(), texts.categories.to_pylist(), strict=True))
    }
    pairs = zip(catalogue["description"].to_pylist(), catalogue["category"].to_pylist(), strict=True)
    return np.array([numbers[department or None, category or None] for department, category in pairs], np.int64)


def _codes(column: Any) -> Ints:
    """Numbers of the distinct values in the order of their first place."""
    codes: Ints = column.combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)
    return codes
