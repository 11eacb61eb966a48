"""How near a catalogue and its events are to others: the same figures of both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

_TEXTS = """
select count(*), sum(items * length(title)) / sum(items), sum(items * words) / sum(items),
    sum(items * (length(title) - avg_length) ** 2) / sum(items), quantile_cont(items, [0.5, 0.9, 0.99]), max(items),
    sum(items) filter (items > 1) / sum(items)
from (
    select title, count(*) as items, any_value(len(string_split(title, ' '))) as words,
        (select avg(length(title)) from catalogue) as avg_length
    from catalogue group by title, category, brand, description
)
"""
_ITEMS = """
select count(*), count(distinct coalesce(category, '')), avg(cast(price is null as int)),
    quantile_cont(price, [0.1, 0.5, 0.9]), avg(cast(available as int)), avg(cast(coalesce(len(regions), 0) > 0 as int)),
    quantile_cont(length(title), [0.05, 0.5, 0.95])
from catalogue
"""
_WORDS = """
select count(distinct word) from (
    select unnest(string_split(name, ' ')) as word
    from (select distinct split_part(title, ', ', 1) as name from catalogue))
"""
_EVENTS = """
select count(*), count(distinct session_id), count(distinct user_id), count(distinct item_id) from events
"""
_LENGTHS = "select avg(n), quantile_cont(n, [0.5, 0.9]) from (select count(*) as n from events group by session_id)"
_SHARES = """
select sum(n) filter (rank <= 0.001 * items) / sum(n), sum(n) filter (rank <= 0.01 * items) / sum(n),
    sum(n) filter (rank <= 0.1 * items) / sum(n)
from (
    select n, row_number() over (order by n desc) as rank, (select count(*) from catalogue) as items
    from (select count(*) as n from events group by item_id)
)
"""
_SHARE = "select ? * (select count(*) from catalogue) / (select count(*) from all_events)"
_THINNED = """
create or replace view events as from all_events
where (md5_number_lower(event_id) >> 11) < {share} * 9007199254740992
"""
_REPEATS = """
select sum(visits - 1) / (select count(*) from events)
from (select count(distinct session_id) as visits from events group by user_id, item_id)
"""
_TOGETHER = """
select avg(cast(one.category = two.category as int))
from (select session_id, any_value(item_id) as a, max(item_id) as b from events group by session_id) as pair
join catalogue as one on one.item_id = a join catalogue as two on two.item_id = b where a <> b
"""


def figures(
    catalogue: Path, events: Path, *, threads: int, memory_limit_mb: int, events_an_item: float | None = None
) -> dict[str, Any]:
    """Of Parquet files in the job's column names; JSON. Raises duckdb.Error when they cannot be read.

    `events_an_item`: of the events only as many, chosen by a hash of their ids: how the purchases spread over items,
    and how many items are bought at all, can only be compared at equal numbers.
    """
    with duckdb.connect(config={"threads": threads, "memory_limit": f"{memory_limit_mb}MB"}) as sql:
        sql.read_parquet(str(catalogue)).create_view("catalogue")
        sql.read_parquet(str(events)).create_view("all_events")
        sql.execute("create view events as from all_events")
        if events_an_item is not None:
            ((share,),) = sql.execute(_SHARE, [events_an_item]).fetchall()
            sql.execute(_THINNED.format(share=min(1.0, share)))

        def one(query: str) -> tuple[Any, ...]:
            return sql.sql(query).fetchall()[0]

        texts, length, words, variance, shared, most, in_family = one(_TEXTS)
        items, categories, unpriced, prices, available, restricted, lengths = one(_ITEMS)
        bought, sessions, users, sold = one(_EVENTS)
        session, session_lengths = one(_LENGTHS)
        return {
            "items": items,
            "distinct_texts": texts,
            "distinct_texts_share": texts / items,
            "items_of_equal_text_share": in_family,
            "items_a_text_p50_p90_p99": shared,
            "items_a_text_most": most,
            "words": one(_WORDS)[0],
            "categories": categories,
            "title_characters": length,
            "title_characters_deviation": variance**0.5,
            "title_characters_p5_p50_p95": lengths,
            "title_words": words,
            "unpriced_share": unpriced,
            "price_p10_p50_p90": prices,
            "available_share": available,
            "restricted_share": restricted,
            "events": bought,
            "sessions": sessions,
            "users": users,
            "items_bought": sold,
            "session_events": session,
            "session_events_p50_p90": session_lengths,
            "bought_share_of_top_0.1_1_10_percent": list(one(_SHARES)),
            "repeated_share": one(_REPEATS)[0],
            "pair_in_one_category_share": one(_TOGETHER)[0],
        }
