"""`feedline request`: one page of a running service, printed for a person or as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

import grpc
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp
from rich.console import Console
from rich.table import Table
from rich.text import Text

from protos import feed_pb2
from services.client import FeedClient, Tls


def viewed_now(item_ids: Sequence[str]) -> list[feed_pb2.Event]:
    """Views of these items, the last one a moment ago."""
    now = time.time_ns() // 1_000_000
    return [
        feed_pb2.Event(item_id=item_id, type=feed_pb2.EVENT_TYPE_VIEW, occurred_at=_stamp(now - len(item_ids) + at))
        for at, item_id in enumerate(item_ids)
    ]


async def print_feed(
    target: str, request: feed_pb2.GetFeedRequest, *, timeout_s: float, as_json: bool, tls: Tls | None = None
) -> int:
    """Asks, prints, and gives the exit code: 0; 1 when the service answered with a status."""
    async with FeedClient(target, timeout_s=timeout_s, tls=tls) as client:
        try:
            page = await client.get_feed(request)
        except grpc.aio.AioRpcError as error:
            print(f"feedline: {target}: {error.code().name}: {error.details()}", file=sys.stderr)
            return 1
    if as_json:
        json.dump(MessageToDict(page, preserving_proto_field_name=True), sys.stdout, indent=1)
        print()
    else:
        print_page(page)
    return 0


def print_page(page: feed_pb2.GetFeedResponse) -> None:
    """A table of the items, then where the page comes from. Ids are printed as they are, brackets too."""
    console = Console()
    table = Table("rank", "item", "score", "from")
    for item in page.items:
        sources = [feed_pb2.Source.Name(source).removeprefix("SOURCE_").lower() for source in item.sources]
        table.add_row(str(item.rank), Text(item.item_id), f"{item.score:.4f}", ", ".join(sources))
    console.print(table)
    source = page.provenance
    rung = feed_pb2.Rung.Name(source.rung).removeprefix("RUNG_")
    cache = feed_pb2.CacheOutcome.Name(source.cache).removeprefix("CACHE_OUTCOME_")
    console.print(f"{rung}{' (degraded)' if source.degraded else ''}  reasons: {', '.join(source.reasons) or 'none'}")
    console.print(f"snapshot {source.snapshot_id or 'none'}  ranker {source.ranker_id or 'none'}  cache {cache}")
    console.print("  ".join(f"{stage.stage} {stage.milliseconds:.2f} ms" for stage in source.stages))
    if page.next_page_token:
        console.print(f"next page: --page-token {page.next_page_token}", soft_wrap=True)


def _stamp(milliseconds: int) -> Timestamp:
    stamp = Timestamp()
    stamp.FromMilliseconds(milliseconds)
    return stamp
