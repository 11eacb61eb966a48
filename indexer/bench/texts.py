"""What is fitted to the texts of a real catalogue: names, sizes and brands, by aisle.

An *aisle* is a pair of department and category; a *name* is a title without its size. A made name is a real one of
its aisle whose last words are put in the place of others: of words that end (or stand inside) the names of the aisle,
or of its department. So vocabulary, word order and lengths are those of the source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from indexer.bench.counted import Counted, Ints

OF_THE_AISLE = 0.6
"""Share of the new words that come from names of the aisle, where it has enough of them; the rest: its department."""
ENOUGH_WORDS = 8
SECOND_WORD = 0.5
"""Share of the made names of three words and more in which a second word is new."""

Bools = npt.NDArray[np.bool_]
_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class Words:
    """Pools of words, one after the other: pool p holds words[start[p] : start[p] + count[p]]."""

    words: pa.Array
    start: Ints
    count: Ints

    def draw(self, random: Counted, stream: str, pool: Ints, key: Ints) -> pa.Array:
        """A word of each pool, string [n]."""
        return self.words.take(pa.array(self.start[pool] + random.below(self.count[pool], stream, key)))


@dataclass(frozen=True, slots=True)
class Texts:
    """The distinct texts of the source, T of them, and what names are made of.

    `items` int64 [T]: items that share the text. `name`, `size` (-1: none), `brand`, `aisle` int64 [T].
    `by_aisle` int64 [T]: texts ordered by aisle, `aisle_start` [A + 1] into it; those that follow one another differ in
    size or brand, as far as the aisle has `looks` int64 [A] of both. `family` int64: sorted, the number of
    texts of each real name. `but_one` and `but_two`: each name without its last one or two words, as far as it has
    more; `long` bool: it has three words or more. `last`, `inner`: words by aisle, then by department.
    """

    items: Ints
    name: Ints
    size: Ints
    brand: Ints
    aisle: Ints
    by_aisle: Ints
    aisle_start: Ints
    looks: Ints
    department: Ints
    family: Ints
    names: pa.Array
    but_one: pa.Array
    but_two: pa.Array
    long: Bools
    last: Words
    inner: Words
    sizes: pa.Array
    brands: pa.Array
    categories: pa.Array
    departments: pa.Array

    def made_names(self, random: Counted, name: Ints, aisle: Ints, kept: Bools, family: Ints) -> pa.Array:
        """The name of each family, string [n]: the real one where `kept`, else one with new words."""
        near = random.share("pool", family) < OF_THE_AISLE
        pool = np.where(near & (self.last.count[aisle] >= ENOUGH_WORDS), aisle, self._department_pool(aisle))
        inner_pool = np.where(near & (self.inner.count[aisle] >= ENOUGH_WORDS), aisle, self._department_pool(aisle))
        second = ~kept & self.long[name] & (random.share("second word", family) < SECOND_WORD)
        chosen = name + np.where(kept, 0, np.where(second, 2, 1)) * len(self.names)
        heads = pa.concat_arrays([self.names, self.but_one, self.but_two])
        last = self.last.draw(random, "last word", pool, family)
        inner = self.inner.draw(random, "inner word", inner_pool, family)
        return _joined(heads.take(pa.array(chosen)), _where(second, inner), _where(~kept, last))

    def _department_pool(self, aisle: Ints) -> Ints:
        return len(self.aisle_start) - 1 + self.department[aisle]


def fit_texts(catalogue: pa.Table) -> Texts:
    """Of a table with title ("name, size"), category, description (the department) and brand, string."""
    columns = [catalogue[column].to_pylist() for column in ("description", "category", "title", "brand")]
    counted: dict[tuple[str, str, str, str], int] = {}
    for row in zip(*([value or "" for value in column] for column in columns), strict=True):
        counted[row] = counted.get(row, 0) + 1
    keys = sorted(counted)
    parts = [_parts(title) for _, _, title, _ in keys]
    aisles, aisle = _numbered((department, category) for department, category, _, _ in keys)
    leaves, name = _numbered((key[0], key[1], part[0]) for key, part in zip(keys, parts, strict=True))
    sizes, size = _numbered(part[1] for part in parts)
    brands, brand = _numbered(key[3] for key in keys)
    department = _numbered(department for department, _ in aisles)[1]
    again = _times_before(aisle * len(sizes) * len(brands) + size * len(brands) + brand)
    by_aisle = np.lexsort((again, aisle))
    names = [leaf[2].split(" ") for leaf in leaves]
    places = [aisles.index(leaf[:2]) for leaf in leaves]
    return Texts(
        items=np.array([counted[key] for key in keys], np.int64),
        name=name,
        size=np.array([-1 if not sizes[each] else each for each in size], np.int64),
        brand=brand,
        aisle=aisle,
        by_aisle=by_aisle,
        aisle_start=np.searchsorted(aisle[by_aisle], np.arange(len(aisles) + 1)),
        looks=np.bincount(aisle, again == 0).astype(np.int64),
        department=department,
        family=np.sort(np.bincount(name)),
        names=pa.array([" ".join(words) for words in names], pa.string()),
        but_one=pa.array([" ".join(words[:-1] or words) for words in names], pa.string()),
        but_two=pa.array([" ".join(words[:-2] or words[:-1] or words) for words in names], pa.string()),
        long=np.array([len(words) > 2 for words in names]),
        last=_pools([words[-1:] if len(words) > 1 else [] for words in names], places, department),
        inner=_pools([words[1:-1] for words in names], places, department),
        sizes=_strings(sizes),
        brands=_strings(brands),
        categories=_strings([category for _, category in aisles]),
        departments=_strings([each for each, _ in aisles]),
    )


def _pools(words: Sequence[Sequence[str]], aisles: Sequence[int], department: Ints) -> Words:
    """Distinct words by aisle (maybe none), then by department; a department without any has those of all."""
    pools: list[set[str]] = [set() for _ in range(len(department) + int(department.max()) + 1)]
    for each, aisle in zip(words, aisles, strict=True):
        pools[aisle].update(each)
        pools[len(department) + department[aisle]].update(each)
    everything = set().union(*pools) or {"Assorted"}
    chosen = [sorted(pool or (everything if at >= len(department) else ())) for at, pool in enumerate(pools)]
    count = np.array([len(pool) for pool in chosen], np.int64)
    flat = [word for pool in chosen for word in pool]
    return Words(pa.array(flat, pa.string()), np.cumsum(count) - count, count)


def _times_before(key: Ints) -> Ints:
    """How often each key stands before its place."""
    order = np.argsort(key, kind="stable")
    first = np.concatenate([[True], key[order][1:] != key[order][:-1]])
    start = np.maximum.accumulate(np.where(first, np.arange(len(key)), 0))
    before = np.empty(len(key), np.int64)
    before[order] = np.arange(len(key)) - start
    return before


def _parts(title: str) -> tuple[str, str]:
    name, comma, size = title.rpartition(", ")
    return (name, size) if comma else (title, "")


def _numbered(keys: Iterable[_Key]) -> tuple[list[_Key], Ints]:
    """The distinct keys in the order of their first place, and the number of each."""
    numbers: dict[_Key, int] = {}
    codes = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    return list(numbers), codes


def _strings(values: Sequence[str]) -> pa.Array:
    """Null where a value is empty."""
    return pa.array([value or None for value in values], pa.string())


def _where(mask: Bools, values: pa.Array) -> pa.Array:
    """Null where not `mask`."""
    return pc.if_else(pa.array(mask), values, pa.scalar(None, pa.string()))


def _joined(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, " ", null_handling="skip")
