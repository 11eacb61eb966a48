"""Shopping events: the user's files become the table `events` of the workspace.

events  row int32 (of the item), type uint8 (the number in feed.proto), session uint64 (hash of tenant and session id),
        user uint64 (hash of tenant and user id; null: nobody known), moment timestamp (UTC), region (null: not said)

An event_id that is met again counts once; events after `until` and impressions are counted and left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from indexer.files import Aside, Column
from indexer.progress import Advance
from indexer.quarantine import Quarantine
from indexer.settings import EventSettings
from indexer.workspace import Workspace, stage_files

SOURCE = "events"
TYPE_NUMBER = {"impression": 1, "view": 2, "click": 3, "cart": 4, "purchase": 5}
"""As in feed.proto."""
IMPRESSION = TYPE_NUMBER["impression"]
AHEAD = timedelta(minutes=5)
"""How far ahead of now an event may be: clocks differ."""
_FIELDS = ("event_id", "tenant", "session_id", "user_id", "item_id", "type", "occurred_at", "region")
_REQUIRED = ("session_id", "item_id", "occurred_at")

SINCE_1970 = """
create or replace macro since_1970(number) as case
    when number between 1e8 and 1e11 then to_timestamp(number)
    when number between 1e11 and 1e14 then to_timestamp(number / 1000) end;
"""
"""Seconds or milliseconds since 1970 as a moment."""

_CHECK = """
create or replace table checked as
with typed as (
    select staged.file, staged.line, nullif(event_id, '') as event_id, staged.session_id, staged.item_id, items.row,
        hash(coalesce(tenant, ''), session_id) as session, staged.type as type_text,
        case when named(user_id) is not null then hash(coalesce(tenant, ''), user_id) end as user,
        case when named(staged.type) is null then $default_type else names.number end as type,
        occurred_at, named(region) as region,
        coalesce(since_1970(try_cast(occurred_at as double)), try_cast(trim(occurred_at) as timestamptz)) as moment
    from read_parquet($staged) as staged
    left join items on items.item_id = staged.item_id
    left join type_names as names on names.word = lower(trim(staged.type))
)
select file, line, event_id, row, session, user, cast(type as utinyint) as type, cast(moment as timestamp) as moment,
    region, case
    when item_id is null or item_id = '' then {'field': 'item_id', 'reason': 'is missing', 'value': ''}
    when session_id is null or session_id = '' then {'field': 'session_id', 'reason': 'is missing', 'value': ''}
    when named(occurred_at) is null then {'field': 'occurred_at', 'reason': 'is missing', 'value': ''}
    when moment is null or not isfinite(moment)
        then {'field': 'occurred_at', 'reason': 'is neither ISO 8601 nor seconds or milliseconds since 1970',
              'value': occurred_at}
    when moment > $latest then {'field': 'occurred_at', 'reason': 'is in the future', 'value': occurred_at}
    when type is null then {'field': 'type', 'reason': 'is not in index.events.type_names', 'value': type_text}
    when unfit(region)
        then {'field': 'region', 'reason': 'is longer than 256 bytes or has control characters', 'value': region}
    when row is null then {'field': 'item_id', 'reason': 'is not in the catalogue', 'value': item_id}
    end as fault
from typed;
"""

SPLIT = """
create or replace table bad_rows as
select file, line, fault.field as field, fault.reason as reason, fault.value as value
from checked where fault is not null;

create or replace table repeats as
select file, line from (
    select file, line, row_number() over (partition by event_id order by file, line) as occurrence
    from checked where fault is null and event_id in (
        select event_id from checked where fault is null and event_id is not null
        group by event_id having count(*) > 1))
where occurrence > 1;
"""
"""Of the table `checked`: the rows at fault, and those whose event_id stood in an earlier row."""

_KEEP = """
create or replace table events as
select row, type, session, user, moment, region from checked anti join repeats using (file, line)
where fault is null and type <> $impression and ($until is null or moment <= $until);
"""


@dataclass(frozen=True, slots=True)
class Events:
    """Rows read, bad, repeated event_ids, impressions and later than `until`; `kept` and their `sessions` are used."""

    rows: int
    bad: int
    repeated: int
    impressions: int
    later: int
    kept: int
    sessions: int
    last: datetime | None
    """Time of the last event that is kept."""


def load_events(
    work: Workspace,
    source: Path,
    settings: EventSettings,
    quarantine: Quarantine,
    advance: Advance,
    *,
    now: datetime,
    until: datetime | None,
) -> Events:
    """Fills `events`; needs `items`. No event at all is fine. Raises InputError, SettingsError, TooManyBadRows."""
    aside = Aside()
    seen = 0

    def count(rows: int) -> None:
        nonlocal seen
        seen += rows
        advance(rows)

    staged = work.folder / "events.parquet"
    files = stage_files(
        source,
        columns_of(settings, _FIELDS, _REQUIRED),
        staged,
        aside,
        count,
        delimiter=settings.delimiter,
        separator="|",
    )
    words = TYPE_NUMBER | {word.lower(): TYPE_NUMBER[name] for word, name in settings.type_names.items()}
    work.sql.register("type_names", pa.table([list(words), pa.array(words.values(), pa.int32())], ["word", "number"]))
    work.sql.execute(SINCE_1970)
    work.sql.execute(
        _CHECK,
        {"default_type": TYPE_NUMBER[settings.default_type], "staged": str(staged), "latest": now + AHEAD},
    )
    work.sql.unregister("type_names")
    work.sql.execute(SPLIT)
    staged.unlink()
    bad = quarantine.add(SOURCE, work, aside, files, seen=seen, max_bad_share=settings.max_bad_share)
    limit = None if until is None else until.astimezone(UTC).replace(tzinfo=None)
    work.sql.execute(_KEEP, {"impression": IMPRESSION, "until": limit})
    return _summary(work, seen, bad, limit)


def _summary(work: Workspace, seen: int, bad: int, until: datetime | None) -> Events:
    repeated = work.count("select count(*) from repeats")
    ((impressions, later),) = work.sql.execute(
        "select count(*) filter (type = $impression), count(*) filter (type <> $impression and moment > $until)"
        " from checked anti join repeats using (file, line) where fault is null",
        {"impression": IMPRESSION, "until": until},
    ).fetchall()
    ((kept, sessions, last),) = work.sql.execute(
        "select count(*), count(distinct session), max(moment) from events"
    ).fetchall()
    work.sql.execute("drop table checked; drop table repeats")
    return Events(seen, bad, repeated, impressions, later, kept, sessions, last and last.replace(tzinfo=UTC))


def columns_of(settings: EventSettings, fields: Sequence[str], required: Sequence[str]) -> Sequence[Column]:
    """The columns of the user's files that hold these fields; those that are renamed must exist, too."""
    columns = settings.columns
    return [
        Column(
            field,
            getattr(columns, field),
            f"index.events.columns.{field}",
            field in required or columns.named(field),
        )
        for field in fields
    ]
