"""The catalogue: the user's files become the tables `items` and `texts` of the workspace.

items   row int32 (the vector row), item_id, title (its first 200 characters, to be shown), category, brand,
        price float (null: unknown), available bool, regions list (null: everywhere), text_no int32
texts   text_no int32, text, images (paths of its pictures; null: none), content (its key, 16 bytes): each distinct
        content once, in the order of its first item
picture_rows   file, line, text_no: where items with pictures stand in the files

Rows are ordered by file, then line. Nothing is held in memory beyond one chunk and what DuckDB is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from indexer.errors import InputError, SettingsError
from indexer.files import Aside, Column
from indexer.images import NO_IMAGES, find_pictures, set_aside_found
from indexer.progress import Advance
from indexer.quarantine import Quarantine
from indexer.settings import CatalogueSettings, ImageSettings
from indexer.text import CONTENT_TEXT
from indexer.workspace import Workspace, stage_files

SOURCE = "catalogue"
_FIELDS = ("item_id", "title", "description", "category", "brand", "price", "available", "regions", "images")
_REQUIRED = ("item_id", "title")

_PATHS = "list_filter(list_transform(images, lambda each: trim(each)), lambda each: each <> '')"
_CHECK = r"""
create or replace table checked as
with cleaned as (
    select file, line, item_id, one_line(coalesce(title, '')) as title, named(category) as category,
        named(brand) as brand, named(price) as price_text, lower(named(available)) as available_text,
        list_filter(list_transform(regions, lambda each: trim(each)), lambda each: each <> '') as regions,
        {images} as images,
        content_text(title, category, brand, description) as text,
        try_cast(price_text as double) as price
    from read_parquet(?)
)
select *, case
    when item_id is null or item_id = '' then {'field': 'item_id', 'reason': 'is missing', 'value': ''}
    when unfit(item_id)
        then {'field': 'item_id', 'reason': 'is longer than 256 bytes or has control characters', 'value': item_id}
    when regexp_matches(title, '\p{Cc}') then {'field': 'title', 'reason': 'has control characters', 'value': title}
    when unfit(category)
        then {'field': 'category', 'reason': 'is longer than 256 bytes or has control characters', 'value': category}
    when list_bool_or(list_transform(regions, lambda each: unfit(each)))
        then {'field': 'regions', 'reason': 'is longer than 256 bytes or has control characters',
              'value': array_to_string(regions, '|')}
    when text = ''
        then {'field': 'title', 'reason': 'is empty, and so are category, brand and description', 'value': ''}
    when price_text is not null and price is null
        then {'field': 'price', 'reason': 'is not a number', 'value': price_text}
    when isnan(price) or abs(price) > 3.4e38
        then {'field': 'price', 'reason': 'is not a finite number', 'value': price_text}
    when price < 0 then {'field': 'price', 'reason': 'is negative', 'value': price_text}
    when available_text not in ('true', 't', 'yes', 'y', '1', 'false', 'f', 'no', 'n', '0')
        then {'field': 'available', 'reason': 'is neither true nor false', 'value': available_text}
    end as fault
from cleaned;
"""

_SPLIT = """
create or replace table repeats as
select file, line, item_id from (
    select file, line, item_id, row_number() over (partition by item_id order by file, line) as occurrence
    from checked where fault is null and item_id in (
        select item_id from checked where fault is null group by item_id having count(*) > 1))
where occurrence > 1;

create or replace table bad_rows as
select file, line, fault.field as field, fault.reason as reason, fault.value as value
from checked where fault is not null
union all select file, line, 'item_id', 'is a duplicate: the first row with it counts', item_id from repeats;

create or replace table good as
select cast(row_number() over (order by file, line) - 1 as integer) as row, checked.* exclude (images),
    item_pictures.images, pictures, content_key(text, pictures) as content
from checked anti join repeats using (file, line) left join item_pictures using (file, line) where fault is null;

create or replace table texts as
select cast(row_number() over (order by min(row)) - 1 as integer) as text_no, any_value(text) as text,
    arg_min(images, row) as images, content from good group by content;

create or replace table picture_rows as
select file, line, text_no from good join texts using (content) where pictures is not null;

create or replace table items as
select row, item_id, left_grapheme(title, 200) as title, category, brand, cast(price as float) as price,
    coalesce(available_text in ('true', 't', 'yes', 'y', '1'), true) as available,
    case when len(regions) > 0 then regions end as regions, text_no
from good join texts using (content) order by row;

drop table checked;
drop table good;
drop table repeats;
drop table item_pictures;
"""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """How many rows were read, how many of them are bad, how many items and distinct contents there are, the files."""

    rows: int
    bad: int
    items: int
    texts: int
    files: tuple[Path, ...]


def load_catalogue(
    work: Workspace,
    source: Path,
    settings: CatalogueSettings,
    quarantine: Quarantine,
    advance: Advance,
    images: ImageSettings = NO_IMAGES,
    threads: int = 1,
) -> Catalogue:
    """Fills `items` and `texts`. Raises InputError, SettingsError, TooManyBadRows."""
    aside = Aside()
    seen = 0

    def count(rows: int) -> None:
        nonlocal seen
        seen += rows
        advance(rows)

    staged = work.folder / "catalogue.parquet"
    files = stage_files(
        source,
        _columns(settings, images),
        staged,
        aside,
        count,
        delimiter=settings.delimiter,
        separator=settings.region_separator,
    )
    if seen == 0:
        raise InputError(f"{source}: the catalogue holds no rows")
    work.sql.execute(CONTENT_TEXT)
    work.sql.execute(_CHECK.replace("{images}", "null::varchar[]" if images.root is None else _PATHS), [str(staged)])
    find_pictures(work, images, threads)
    work.sql.execute(_SPLIT)
    staged.unlink()
    bad = quarantine.add(SOURCE, work, aside, files, seen=seen, max_bad_share=settings.max_bad_share)
    set_aside_found(work, quarantine, files)
    items = work.count("select count(*) from items")
    if items == 0:
        raise InputError(f"{source}: none of the {seen:,} rows is a usable item; see {quarantine.path}")
    return Catalogue(seen, bad, items, work.count("select count(*) from texts"), tuple(files))


def _columns(settings: CatalogueSettings, images: ImageSettings) -> Sequence[Column]:
    columns = settings.columns
    kinds = {"price": "number", "regions": "list", "images": "list"}
    if images.root is None and columns.named("images"):
        raise SettingsError("index.catalogue.columns.images is set: index.encoder.images.root is expected, too")
    return [
        Column(
            field,
            getattr(columns, field),
            f"index.catalogue.columns.{field}",
            field in _REQUIRED or columns.named(field),
            kinds.get(field, "text"),  # type: ignore[arg-type]
        )
        for field in _FIELDS
        if field != "images" or images.root is not None
    ]
