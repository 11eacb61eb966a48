"""What each user bought, out of the events files: for the histories that `feedline events load` writes.

Read, checked and counted as by the nightly job, with two differences: no catalogue is asked, and a user is. What is
counted is what the service would have counted, had it been told of every purchase in order of time: a session is told
apart by its id, and its purchases of an item count once, at the last of their moments. Rows are grouped and sorted by
DuckDB, on disk beyond `index.memory_limit_mb`; Python sees one user after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa

from indexer.contract.publish import exclusive
from indexer.contract.purchases import Bought, UserPurchases
from indexer.events import AHEAD, SINCE_1970, SOURCE, SPLIT, TYPE_NUMBER, columns_of
from indexer.files import Aside, find
from indexer.progress import Stages
from indexer.quarantine import Quarantine
from indexer.row_counts import expected_rows
from indexer.settings import EventSettings, IndexSettings
from indexer.workspace import BATCH_ROWS, Workspace, stage_files, workspace

_FIELDS = ("event_id", "tenant", "session_id", "user_id", "item_id", "type", "occurred_at")
_REQUIRED = ("session_id", "user_id", "item_id", "occurred_at")
_NUMBERS = ("at_ms", "times", "first_ms", "last_ms")

_CHECK = """
create table checked as
with typed as (
    select staged.*, case when named(staged.type) is null then $default_type else names.number end as number,
        coalesce(since_1970(try_cast(occurred_at as double)), try_cast(trim(occurred_at) as timestamptz)) as moment
    from read_parquet($staged) as staged
    left join type_names as names on names.word = lower(trim(staged.type))
)
select file, line, nullif(event_id, '') as event_id, coalesce(nullif(tenant, ''), $tenant) as tenant, session_id,
    case when named(user_id) is not null then user_id end as user_id, item_id, number as type,
    cast(moment as timestamp) as moment, case
    when item_id is null or item_id = '' then {'field': 'item_id', 'reason': 'is missing', 'value': ''}
    when session_id is null or session_id = '' then {'field': 'session_id', 'reason': 'is missing', 'value': ''}
    when named(occurred_at) is null then {'field': 'occurred_at', 'reason': 'is missing', 'value': ''}
    when moment is null or not isfinite(moment)
        then {'field': 'occurred_at', 'reason': 'is neither ISO 8601 nor seconds or milliseconds since 1970',
              'value': occurred_at}
    when moment > $latest then {'field': 'occurred_at', 'reason': 'is in the future', 'value': occurred_at}
    when number is null then {'field': 'type', 'reason': 'is not in index.events.type_names', 'value': typed.type}
    when unfit(item_id)
        then {'field': 'item_id', 'reason': 'is longer than 256 bytes or has control characters', 'value': item_id}
    when unfit(user_id)
        then {'field': 'user_id', 'reason': 'is longer than 256 bytes or has control characters', 'value': user_id}
    end as fault
from typed;
"""

_COUNTS = """
select (select count(*) from repeats), count(*) filter (type <> $purchase),
    count(*) filter (type = $purchase and user_id is null),
    count(*) filter (type = $purchase and user_id is not null and moment > $until)
from checked anti join repeats using (file, line) where fault is null
"""

_BOUGHT = """
create table bought as
select tenant, user_id, session_id, item_id, max(epoch_ms(moment)) as at_ms
from checked anti join repeats using (file, line)
where fault is null and type = $purchase and user_id is not null and ($until is null or moment <= $until)
group by tenant, user_id, session_id, item_id;
"""

# The item '' stands for anything at all: it is the first of each user.
_HISTORIES = """
insert into bought select tenant, user_id, session_id, '', max(at_ms) from bought group by tenant, user_id, session_id;

create table counted as
with ranked as (
    select *, row_number() over (partition by tenant, user_id, item_id order by at_ms desc, session_id desc) as place
    from bought
)
select tenant, user_id, item_id, left(sha256(max(session_id) filter (place = 1)), 8) as tag, max(at_ms) as at_ms,
    count(*) - 1 as times, if(count(*) > 1, min(at_ms), 0) as first_ms,
    coalesce(max(at_ms) filter (place > 1), 0) as last_ms
from ranked group by tenant, user_id, item_id;
drop table bought;

create table users as
select tenant, user_id, row_number() over (order by hash(tenant, user_id), tenant, user_id) as number
from counted where item_id = '';

create table histories as
with latest as (
    select *, row_number() over (
        partition by tenant, user_id order by item_id = '' desc, at_ms desc, item_id) as place
    from counted
)
select number, place, latest.* exclude (place) from latest join users using (tenant, user_id)
where place <= $items + 1 order by number, place;
drop table counted;
"""


@dataclass(frozen=True, slots=True)
class Read:
    """Rows read, bad, repeated event_ids, no purchases, of nobody, later than `until`; users that are left."""

    rows: int
    bad: int
    repeated: int
    other_types: int
    anonymous: int
    later: int
    users: int


class Purchases:
    """The users of the files, in an order that depends on the files and settings alone; `what` is a digest of both."""

    def __init__(self, work: Workspace, read: Read, what: str) -> None:
        self._work = work
        self.read = read
        self.what = what

    def users(self, after: int) -> Iterator[UserPurchases]:
        """All users but the first `after`."""
        with self._work.sql.cursor() as reader:
            rest: list[pa.Table] = []
            query = "select * from histories where number > $1"
            for batch in reader.sql(query, params=[after]).to_arrow_reader(BATCH_ROWS):
                table = pa.concat_tables([*rest, pa.Table.from_batches([batch])]).combine_chunks()
                numbers = table["number"].to_numpy()
                whole = int(np.searchsorted(numbers, numbers[-1]))
                yield from _users(table.slice(0, whole))
                rest = [table.slice(whole)]
            for table in rest:
                yield from _users(table)


@contextmanager
def purchases(
    settings: IndexSettings,
    source: Path,
    folder: Path,
    stages: Stages,
    *,
    now: datetime,
    until: datetime | None,
    items: int,
    tenant: str,
) -> Iterator[Purchases]:
    """What is in the files at `source` up to `until`: the latest `items` of each user; usable while it is entered.

    `folder` holds scratch files, `quarantine/` and the lock. `tenant`: of rows that name none. Raises BuildError, and
    Locked when another load uses the folder.
    """
    with (
        exclusive(folder, f"feedline events load of {source}"),
        workspace(folder, threads=settings.thread_count, memory_limit_mb=settings.memory_limit_mb) as work,
    ):
        what = _digest(settings.events, source, until, items, tenant)
        quarantine = Quarantine(folder / "quarantine" / f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{what[:8]}.jsonl")
        read = _load(work, source, settings.events, quarantine, stages, now=now, until=until, tenant=tenant)
        with stages.stage("histories"):
            for statement in _HISTORIES.split(";\n")[:-1]:
                work.sql.execute(statement, {"items": items} if "$items" in statement else None)
        users = work.count("select count(*) from users")
        if quarantine.written:
            stages.note(f"{read[1]:,} rows are bad: {quarantine.written}")
        yield Purchases(work, Read(*read, users), what)


def _load(
    work: Workspace,
    source: Path,
    settings: EventSettings,
    quarantine: Quarantine,
    stages: Stages,
    *,
    now: datetime,
    until: datetime | None,
    tenant: str,
) -> tuple[int, int, int, int, int, int]:
    """Fills `bought`; the counts of Read but the last."""
    aside = Aside()
    seen = 0
    staged = work.folder / "events.parquet"
    with stages.stage("events", expected_rows(source), "rows") as advance:

        def count(rows: int) -> None:
            nonlocal seen
            seen += rows
            advance(rows)

        columns = columns_of(settings, _FIELDS, _REQUIRED)
        files = stage_files(source, columns, staged, aside, count, delimiter=settings.delimiter, separator="|")
        words = TYPE_NUMBER | {word.lower(): TYPE_NUMBER[name] for word, name in settings.type_names.items()}
        numbers = pa.array(words.values(), pa.int32())
        work.sql.register("type_names", pa.table([list(words), numbers], ["word", "number"]))
        default_type = TYPE_NUMBER[settings.default_type]
        given = {"default_type": default_type, "staged": str(staged), "latest": now + AHEAD, "tenant": tenant}
        work.sql.execute(SINCE_1970)
        work.sql.execute(_CHECK, given)
        work.sql.unregister("type_names")
        staged.unlink()
        work.sql.execute(SPLIT)
        bad = quarantine.add(SOURCE, work, aside, files, seen=seen, max_bad_share=settings.max_bad_share)
        limit = None if until is None else until.astimezone(UTC).replace(tzinfo=None)
        kept = {"purchase": TYPE_NUMBER["purchase"], "until": limit}
        ((repeated, other_types, anonymous, later),) = work.sql.execute(_COUNTS, kept).fetchall()
        work.sql.execute(_BOUGHT, kept)
        work.sql.execute("drop table checked; drop table repeats")
    return seen, bad, repeated, other_types, anonymous, later


def _users(table: pa.Table) -> Iterator[UserPurchases]:
    """The users of whole histories; there may be none."""
    starts = np.flatnonzero(table["place"].to_numpy() == 1)
    stops = np.append(starts, table.num_rows)[1:]
    tenants, users = (table[name].take(starts).to_pylist() for name in ("tenant", "user_id"))
    item_ids, tags = (table[name].to_pylist() for name in ("item_id", "tag"))
    numbers = [table[name].to_numpy().tolist() for name in _NUMBERS]
    for tenant, user_id, start, stop in zip(tenants, users, starts.tolist(), stops.tolist(), strict=True):
        first, items = slice(start, start + 1), slice(start + 1, stop)
        yield UserPurchases(
            tenant,
            user_id,
            Bought(tags[first], *(column[first] for column in numbers)),
            item_ids[items],
            Bought(tags[items], *(column[items] for column in numbers)),
        )


def _digest(settings: EventSettings, source: Path, until: datetime | None, items: int, tenant: str) -> str:
    """Of everything that decides which users there are, in which order."""
    digest = sha256(f"{settings.model_dump_json()} {until and until.timestamp()} {items} {tenant}".encode())
    for path in find(source):
        stat = path.stat()
        digest.update(f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()
