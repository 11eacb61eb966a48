"""A synthetic catalogue and its events, written and measured: the work of `feedline bench catalogue`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from indexer.bench.catalogue import plan_catalogue, write_catalogue
from indexer.bench.counted import Counted
from indexer.bench.fit import figures
from indexer.bench.sessions import crowd_of, write_sessions
from indexer.bench.shop import fit_shop
from indexer.progress import Stages

ITEMS_A_SESSION = 8
"""By default there is a session for as many items."""
_MEMORY_MB = 2048
_SPREAD = ("items_bought", "bought_share_of_top_0.1_1_10_percent")


def make(
    catalogue: Path, events: Path, out: Path, *, items: int, sessions: int | None, seed: int, stages: Stages
) -> dict[str, Any]:
    """Writes catalogue.parquet and events.parquet to `out`, fitted to two real files, and compares them; JSON.

    The files hold nothing of the time or the machine: the same arguments give the same bytes. Raises ValueError when
    the real files are empty.
    """
    out.mkdir(parents=True, exist_ok=True)
    sessions = max(1, items // ITEMS_A_SESSION) if sessions is None else sessions
    said = f"synthetic: {items} items, {sessions} sessions, seed {seed}; made by feedline bench catalogue"
    metadata = {"feedline.synthetic": said}
    random = Counted(seed)
    with stages.stage("fit"):
        shop = fit_shop(pq.read_table(catalogue), pq.read_table(events))
        plan = plan_catalogue(shop, random, items)
        crowd = crowd_of(shop, random, sessions)
    made, bought = out / "catalogue.parquet", out / "events.parquet"
    with stages.stage("catalogue", items, "items") as advance:
        write_catalogue(shop, plan, random, made, metadata, advance)
    with stages.stage("sessions", sessions, "sessions") as advance:
        written = write_sessions(shop, plan, crowd, random, bought, metadata, advance)
    with stages.stage("measure"):
        ours = figures(made, bought, threads=1, memory_limit_mb=_MEMORY_MB)
        real = figures(catalogue, events, threads=1, memory_limit_mb=_MEMORY_MB)
        thinned = figures(catalogue, events, threads=1, memory_limit_mb=_MEMORY_MB, events_an_item=written / items)
    return {
        "synthetic": True,
        "made_by": said,
        "catalogue": str(made),
        "events": str(bought),
        "items": items,
        "distinct_texts": ours["distinct_texts"],
        "sessions": sessions,
        "event_rows": written,
        "made": ours,
        "source": real,
        "source_at_as_many_events_an_item": {name: thinned[name] for name in _SPREAD},
        "popularity_law": {"power": round(shop.popularity.power, 3), "offset": round(shop.popularity.offset, 6)},
        "seconds": stages.seconds,
    }
