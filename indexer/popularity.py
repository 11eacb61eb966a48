"""Time-decayed popularity: the score of each item, and the lists of popular.parquet.

An event counts weight(type) * 2 ** -(age / half-life), age counted from a reference time. Sums are taken over
integers, billionths of an event, so that the order in which threads add up does not matter.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from indexer.contract.features import Floats
from indexer.contract.popular import SCHEMA
from indexer.events import TYPE_NUMBER
from indexer.settings import PopularitySettings
from indexer.workspace import Workspace

Scores = npt.NDArray[np.float64]
_UNIT = 1e9

_SOLD = """
create or replace table sold as
select row, region, sum(cast(round($unit * weights.weight
    * pow(2.0, (epoch(moment) - $reference) / $half_life_s)) as bigint)) as score
from events join type_weights as weights using (type) where moment < cast($before as timestamp) group by row, region;
"""
_SCORES = """
create or replace table scores as
select row, sum(score) as score from sold group by row having sum(score) > 0;
"""

_LISTS = """
create or replace table pool as
select row, category, regions, coalesce(score, 0) as score from items left join scores using (row) where available;

create or replace table here as
select region, row, max(score) as here from (
    select sold.region, row, sold.score from sold join pool using (row)
    where sold.region is not null and (pool.regions is null or list_contains(pool.regions, sold.region))
    union all select unnest(regions) as region, row, 0 from pool where regions is not null)
group by region, row;

create or replace table all_regions as
select region from here union select region from sold where region is not null;

create or replace table everywhere as
select row, category, row_number() over (order by score desc, row) as place,
    row_number() over (partition by category order by score desc, row) as place_in_category
from pool where regions is null;

create or replace table best as
select row, category, score, row_number() over (order by score desc, row) as place,
    row_number() over (partition by category order by score desc, row) as place_in_category
from pool;

create or replace table candidates as
select null as region, null as category, row, score as here, score from best where place <= $list_length
union all
select null, category, row, score, score from best where category is not null and place_in_category <= $list_length
union all
select region, null, row, max(here), score from (
    select region, row, here from here
    union all select region, row, 0 from all_regions cross join everywhere where place <= $list_length)
join pool using (row) group by region, row, score
union all
select region, category, row, max(here), score from (
    select region, row, here from here
    union all select region, row, 0 from (select distinct region, category from here join pool using (row))
    join everywhere using (category) where place_in_category <= $list_length)
join pool using (row) where category is not null group by region, category, row, score;
"""
"""here        items sold in a region, or allowed there by name, and their score there
best        all items: no list without a region is longer
everywhere  items without regions: they fill the lists of each region, so only the best of them matter
A list is ordered by the score in its region, then by the overall score, then by row."""

_BEST = """
select region, category, row, cast(here / {unit} as float) as score from (
    select *, row_number() over (partition by region, category order by here desc, score desc, row) as place
    from candidates)
where place <= {list_length} order by region nulls first, category nulls first, place
"""


def score_items(
    work: Workspace, settings: PopularitySettings, items: int, *, before: datetime | None, reference: datetime | None
) -> Scores:
    """float64 [items]: the score of each item by the events before a time (None: all), decayed to `reference`.

    Leaves the scores by region and item in the table `sold`, for `write_lists`.
    """
    weights = {TYPE_NUMBER[name]: getattr(settings, name) for name in ("view", "click", "cart", "purchase")}
    table = pa.table(
        [pa.array(list(weights), pa.uint8()), pa.array(list(weights.values()), pa.float64())], ["type", "weight"]
    )
    work.sql.register("type_weights", table)
    parameters = {
        "unit": _UNIT,
        "reference": reference.timestamp() if reference else 0.0,
        "half_life_s": settings.half_life_days * 86_400,
        "before": "infinity" if before is None else before.astimezone(UTC).replace(tzinfo=None).isoformat(),
    }
    work.sql.execute(_SOLD, parameters)
    work.sql.execute(_SCORES)
    work.sql.unregister("type_weights")
    scores = np.zeros(items, np.float64)
    for batch in work.batches("select row, cast(score as double) as score from scores"):
        scores[batch["row"].to_numpy()] = batch["score"].to_numpy() / _UNIT
    return scores


def scaled(scores: Scores) -> Floats:
    """float32 [n] in 0..1: log1p of the scores over that of the highest."""
    logs = np.log1p(scores)
    highest = logs.max(initial=0.0)
    return np.asarray(logs / highest if highest > 0 else logs, np.float32)


def write_lists(work: Workspace, settings: PopularitySettings, path: Path) -> int:
    """Writes popular.parquet from the scores of the last `score_items`; how many lists it holds.

    Only available items stand in the lists, and in a region's list only those that may be shown there.
    """
    for statement in _LISTS.split(";\n")[:-1]:
        given = {"list_length": settings.list_length} if "$list_length" in statement else None
        work.sql.execute(statement, given)
    with pq.ParquetWriter(path, SCHEMA) as writer:
        for batch in work.batches(_BEST.format(unit=_UNIT, list_length=settings.list_length)):
            writer.write_table(pa.Table.from_batches([batch]).cast(SCHEMA))
    lists = work.count("select count(*) from (select distinct region, category from candidates)")
    for table in ("pool", "here", "best", "everywhere", "all_regions", "candidates"):
        work.sql.execute(f"drop table {table}")
    return lists
