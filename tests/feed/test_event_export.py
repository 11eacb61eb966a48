from __future__ import annotations

import asyncio
import datetime
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from services.domain import EventType
from services.errors import StateUnavailable
from services.feed.event_export import SCHEMA, Exported, export
from services.feed.state_keys import StateKeys
from tests.feed.state import NOW_MS, batch, event, state_at
from tests.servers import Server, client_of

KEYS = StateKeys()


def files(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.glob(pattern))


async def run(server: Server, out: Path, batch_size: int = 7) -> Exported:
    async with client_of(server.url) as client:
        return await export(client, out, KEYS, batch_size=batch_size, timeout_s=5)


def exported(out: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in files(out, "events-*.parquet"))


async def record(server: Server, first: int, count: int, sessions: int = 10) -> None:
    async with state_at(server.url) as state:
        for number in range(first, first + count):
            await state.stream.record(batch(event(number), session=f"s{number % sessions}"))


async def left(server: Server) -> int:
    async with client_of(server.url) as client:
        return sum([await client.xlen(stream) for stream in KEYS.streams()])


async def test_all_events_come_out_once_with_all_their_columns(server: Server, tmp_path: Path) -> None:
    async with state_at(server.url) as state:
        await state.stream.record(batch(event(1, EventType.PURCHASE, response_id="r1")))
    await record(server, 2, 98)

    result = await run(server, tmp_path)

    table = exported(tmp_path)
    assert (result.events, result.rejected, result.rejects) == (99, 0, None)
    assert table.schema.equals(SCHEMA)
    assert Counter(table["event_id"].to_pylist()) == Counter(f"e{number}" for number in range(1, 100))
    row = table.filter(pa.compute.equal(table["event_id"], "e1")).to_pylist()[0]
    recorded_at = row.pop("recorded_at")
    assert abs(datetime.datetime.now(datetime.UTC) - recorded_at) < datetime.timedelta(minutes=1)
    assert row == {
        "event_id": "e1",
        "tenant": "shop",
        "session_id": "s",
        "user_id": "u",
        "region": "eu",
        "item_id": "item-001",
        "type": "purchase",
        "occurred_at": datetime.datetime.fromtimestamp((NOW_MS + 1) / 1000, datetime.UTC),
        "response_id": "r1",
    }
    assert await left(server) == 0


async def test_a_second_run_takes_only_what_is_new_into_a_file_of_its_own(server: Server, tmp_path: Path) -> None:
    await record(server, 0, 20)
    first = await run(server, tmp_path)
    await record(server, 20, 5)

    second = await run(server, tmp_path)

    assert first.file != second.file
    assert (first.events, second.events) == (20, 5)
    assert sorted(exported(tmp_path)["event_id"].to_pylist()) == sorted(f"e{number}" for number in range(25))


async def test_empty_streams_make_no_file(server: Server, tmp_path: Path) -> None:
    assert await run(server, tmp_path / "new") == Exported(0, 0, None, None)
    assert files(tmp_path / "new", "*.parquet") == []


async def test_events_that_come_in_meanwhile_wait_for_the_next_run(server: Server, tmp_path: Path) -> None:
    await record(server, 0, 30)
    seen: list[int] = []

    async def meanwhile() -> None:
        await record(server, 30, 30)

    async with client_of(server.url) as client:
        result, _ = await asyncio.gather(
            export(client, tmp_path, KEYS, batch_size=3, progress=seen.append, timeout_s=5), meanwhile()
        )

    assert seen == sorted(seen)
    assert seen[-1] == result.events >= 30
    assert result.events + await left(server) == 60
    await run(server, tmp_path)
    assert Counter(exported(tmp_path)["event_id"].to_pylist()) == Counter(f"e{number}" for number in range(60))


async def test_what_cannot_be_read_is_put_aside_and_not_lost(server: Server, tmp_path: Path) -> None:
    await record(server, 0, 3)
    stream = KEYS.streams()[3]
    good = [1, "e", "t", "s", "u", "r", "i", 2, NOW_MS, ""]
    foreign = [
        "not json",
        json.dumps([2, *good[1:]]),
        json.dumps(good[:-1]),
        json.dumps([*good[:7], 99, *good[8:]]),
        json.dumps([*good[:8], "yesterday", ""]),
        json.dumps([*good[:8], 2**70, ""]),
        json.dumps([1, None, *good[2:]]),
        json.dumps([1, "\ud800", *good[2:]]),
    ]
    async with client_of(server.url) as client:
        for text in foreign:
            await client.xadd(stream, {"e": text})
        await client.xadd(stream, {"other": b"\xff"})

    result = await run(server, tmp_path)

    assert (result.events, result.rejected) == (3, len(foreign) + 1)
    assert result.rejects is not None
    rejects = [json.loads(line) for line in result.rejects.read_text().splitlines()]
    assert [reject["fields_latin1"].get("e") for reject in rejects] == [*foreign, None]
    assert {reject["stream"] for reject in rejects} == {stream}
    assert all(reject["reason"] for reject in rejects)
    assert await left(server) == 0


async def test_only_one_export_runs_in_a_folder(server: Server, tmp_path: Path) -> None:
    await record(server, 0, 5)

    async with client_of(server.url) as client:
        results = await asyncio.gather(
            export(client, tmp_path, KEYS, timeout_s=5),
            export(client, tmp_path, KEYS, timeout_s=5),
            return_exceptions=True,
        )

    assert sorted(type(result).__name__ for result in results) == ["BlockingIOError", "Exported"]
    assert [".export.lock" in str(result) for result in results if isinstance(result, BlockingIOError)] == [True]


async def test_a_lost_server_leaves_no_file(own_server: Server, tmp_path: Path) -> None:
    await record(own_server, 0, 5)

    async with client_of(own_server.url) as client:
        with pytest.raises(StateUnavailable, match=r"^events export: "):
            await export(client, tmp_path, KEYS, batch_size=1, progress=lambda _count: own_server.kill(), timeout_s=5)

    assert files(tmp_path, "events-*") == []


KILLED = """
import asyncio, os, pathlib, signal, sys
from services.feed import event_export
from services.feed.state_keys import StateKeys
from cache.redis_link import open_client
url, out, point = sys.argv[1:]
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if point == "while_writing":
    progress = die
else:
    progress = None
    whole = event_export._publish
    def publish(temporary, file):
        if point == "before_publishing":
            die()
        whole(temporary, file)
        die()
    event_export._publish = publish
asyncio.run(event_export.export(open_client(url), pathlib.Path(out), StateKeys(), progress=progress))
"""


@pytest.mark.parametrize("point", ["while_writing", "before_publishing", "between_publishing_and_trimming"])
async def test_an_export_that_is_killed_loses_nothing(server: Server, tmp_path: Path, point: str) -> None:
    await record(server, 0, 25)
    command = [sys.executable, "-c", KILLED, server.url, str(tmp_path), point]
    killed = await asyncio.to_thread(subprocess.run, command, check=False, env=os.environ | {"PYTHONPATH": "."})
    assert killed.returncode == -signal.SIGKILL
    assert await left(server) == 25
    await record(server, 25, 5)

    await run(server, tmp_path)

    again = 25 if point == "between_publishing_and_trimming" else 0
    ids = exported(tmp_path)["event_id"].to_pylist()
    assert set(ids) == {f"e{number}" for number in range(30)}
    assert len(ids) == 30 + again
    assert files(tmp_path, ".*.tmp") == []
    assert await left(server) == 0
