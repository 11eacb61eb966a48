"""`feedline events load`: histories out of files equal those that were recorded, whatever happened meanwhile."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from indexer.contract.purchases import Bought, UserPurchases
from indexer.errors import SettingsError, TooManyBadRows
from indexer.progress import Silent, Stages
from indexer.purchases import Purchases, purchases
from indexer.settings import EventSettings, IndexSettings
from services.cli import app
from services.domain import PastPurchase, PastPurchases
from services.errors import StartError
from services.feed.event_export import export
from services.feed.state_keys import StateKeys
from services.history_load import BATCH, LoadedHistories, load_histories
from services.settings import State as StateSettings
from tests.feed.histories import Visit, counted, visits
from tests.feed.state import NOW_MS, State, batch, purchase, state_at
from tests.indexer.shop import write
from tests.servers import Server, client_of, free_port

NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


def rows(log: Sequence[Visit]) -> list[dict[str, Any]]:
    """The log as a shop would export it."""
    return [
        {
            "event_id": f"{visit.session}/{event.event_id}",
            "tenant": call.tenant,
            "session_id": visit.session,
            "user_id": visit.user,
            "item_id": event.item_id,
            "type": event.type.name.lower(),
            "occurred_at": event.occurred_at_ms,
        }
        for visit in log
        for call in visit.calls
        for event in call.events
    ]


def loading(folder: Path, source: Path, items: int = 256, until: datetime | None = None) -> Any:
    settings = IndexSettings(threads=1, memory_limit_mb=512)
    given: dict[str, Any] = {"now": NOW, "until": until, "items": items, "tenant": "default"}
    return purchases(settings, source, folder / "load", Stages(Silent()), **given)


async def load(server: Server, bought: Purchases, items: int = 256) -> LoadedHistories:
    settings = StateSettings(history_items=items)
    return await load_histories(settings, server.url, bought.users, bought.what, lambda done: None)


async def load_log(server: Server, folder: Path, log: Sequence[Visit], items: int = 256) -> LoadedHistories:
    with loading(folder, write(folder / "log.jsonl", rows(log)), items) as bought:
        return await load(server, bought, items)


async def record(state: State, log: Sequence[Visit]) -> None:
    for visit in log:
        for call in visit.calls:
            await state.stream.record(call)


async def read(state: State, user: str, session: str = "") -> PastPurchases:
    return (await state.sessions.read("shop", session, user)).history


@pytest.mark.parametrize("seed", range(2))
async def test_what_is_loaded_is_what_was_recorded_event_by_event(server: Server, tmp_path: Path, seed: int) -> None:
    log = visits(seed)
    async with state_at(server.url) as state, client_of(server.url) as client:
        await record(state, log)
        asked = [(visit.user, session) for visit in log for session in ("", visit.session)]
        recorded = [await read(state, user, session) for user, session in asked]
        await client.flushall()

        loaded = await load_log(server, tmp_path, log)

        assert (loaded.users, loaded.known) == (3, 0)
        assert [await read(state, user, session) for user, session in asked] == recorded
        assert recorded[0] == counted(log, log[0].user)


@pytest.mark.parametrize("seed", range(2))
async def test_loading_and_recording_the_same_log_gives_the_log_in_whatever_order(
    server: Server, tmp_path: Path, seed: int
) -> None:
    log = visits(seed)
    users = sorted({visit.user for visit in log})
    for recorded, loaded in ((log[:17], log), (log, log[:17]), (log[:1], log), (log, log)):
        async with state_at(server.url) as state, client_of(server.url) as client:
            await client.flushall()
            await record(state, recorded)
            with loading(tmp_path, write(tmp_path / "log.jsonl", rows(loaded))) as bought:
                for _ in range(2):
                    assert (await load(server, bought)).replaced == 0
                    assert [await read(state, user) for user in users] == [counted(log, user) for user in users]


async def test_a_session_that_was_recorded_after_the_files_ended_is_added(server: Server, tmp_path: Path) -> None:
    log = visits(5, users=1)
    last = max(number for number, visit in enumerate(log) if visit.bought)
    async with state_at(server.url) as state:
        await record(state, log[last:])
        await load_log(server, tmp_path, log[:last])

        assert await read(state, "user-0") == counted(log, "user-0")
        assert await read(state, "user-0", log[last].session) == counted(log[:last], "user-0")


@pytest.mark.parametrize("seed", range(2))
async def test_merging_counts_nothing_twice_and_at_least_what_either_knows(
    server: Server, tmp_path: Path, seed: int
) -> None:
    log = visits(seed, sessions=40)
    users = sorted({visit.user for visit in log})
    async with state_at(server.url) as state:
        await record(state, log[20:])
        with loading(tmp_path, write(tmp_path / "log.jsonl", rows(log[:20]))) as bought:
            await load(server, bought)
            once = [await read(state, user) for user in users]
            await load(server, bought)

        assert [await read(state, user) for user in users] == once
        for user, merged in zip(users, once, strict=True):
            truth, *parts = (counted(part, user) for part in (log, log[:20], log[20:]))
            assert max(part.sessions for part in parts) <= merged.sessions <= truth.sessions
            times = {item.item_id: item.times for item in truth.items}
            assert {item.item_id: (item.first_ms, item.last_ms) for item in merged.items} == {
                item.item_id: (item.first_ms, item.last_ms) for item in truth.items
            }
            assert all(item.times <= times[item.item_id] for item in merged.items)
            found = {item.item_id: item.times for item in merged.items}
            assert all(found[item.item_id] >= item.times for part in parts for item in part.items)


async def test_the_latest_items_are_loaded_and_kept(server: Server, tmp_path: Path) -> None:
    log = visits(1, users=1)
    async with state_at(server.url, history_items=4) as state:
        await load_log(server, tmp_path, log[:20], items=4)
        whole = counted(log[:20], "user-0")
        assert await read(state, "user-0") == PastPurchases(whole.items[:4], whole.sessions)

        await record(state, log[20:])
        await load_log(server, tmp_path, log, items=4)
        found = await read(state, "user-0")
        latest = counted(log, "user-0")
        assert [item.item_id for item in found.items] == [item.item_id for item in latest.items[:4]]
        assert found.sessions == latest.sessions


async def test_what_is_no_history_is_replaced_and_a_key_of_another_type_stays(server: Server, tmp_path: Path) -> None:
    log = visits(2, users=3)
    async with state_at(server.url) as state, client_of(server.url) as client:
        damaged, foreign = (state.keys.history("shop", user) for user in ("user-0", "user-1"))
        await client.set(damaged, "{}")
        await client.rpush(foreign, "x")

        loaded = await load_log(server, tmp_path, log)

        assert (loaded.users, loaded.known, loaded.replaced, loaded.foreign) == (3, 1, 1, 1)
        assert await read(state, "user-0") == counted(log, "user-0")
        assert await client.type(foreign) == b"list"


async def test_a_load_that_was_stopped_goes_on_where_it_stopped_and_another_one_does_not(server: Server) -> None:
    users = [_one_item(number) for number in range(3 * BATCH + 7)]
    settings = StateSettings()

    def broken(after: int) -> Iterator[UserPurchases]:
        yield from users[after : 2 * BATCH + 5]
        raise OSError("the disk is gone")

    def whole(after: int) -> Iterator[UserPurchases]:
        yield from users[after:]

    async with client_of(server.url) as client, state_at(server.url) as state:
        with pytest.raises(StartError, match="the disk is gone; the same command goes on where it stopped"):
            await load_histories(settings, server.url, broken, "a", lambda done: None)
        assert len(await client.keys("*history*")) == 2 * BATCH

        done: list[int] = []
        resumed = await load_histories(settings, server.url, whole, "a", done.append)
        assert (resumed.resumed_after, resumed.users, resumed.known) == (2 * BATCH, BATCH + 7, 0)
        assert sum(done) == len(users)
        assert len(await client.keys("*history*")) == len(users)
        known = await state.sessions.read("shop", "", f"user-{BATCH}")
        assert known.history == PastPurchases((PastPurchase("tea", 1, NOW_MS, NOW_MS),), 1)

        again = await load_histories(settings, server.url, whole, "b", lambda done: None)
        assert (again.resumed_after, again.users, again.known) == (0, len(users), len(users))
        assert await client.keys("*load*") == []


def _one_item(number: int) -> UserPurchases:
    one = Bought(["t"], [NOW_MS], [0], [0], [0])
    return UserPurchases("shop", f"user-{number}", one, ["tea"], one)


async def test_everything_that_is_loaded_has_a_lifetime(server: Server, tmp_path: Path) -> None:
    await load_log(server, tmp_path, visits(0))
    async with client_of(server.url) as client:
        keys = cast("list[bytes]", await client.keys("*"))
        assert len(keys) == 3
        assert all([0 < await client.ttl(key) <= StateSettings().history_s for key in keys])


async def test_a_server_that_is_lost_or_full_is_named(own_server: Server, tmp_path: Path) -> None:
    with loading(tmp_path, write(tmp_path / "log.jsonl", rows(visits(0)))) as bought:
        async with client_of(own_server.url) as client:
            await client.config_set("maxmemory", "1")
            with pytest.raises(StartError, match=r"the state server cannot be written: OutOfMemoryError"):
                await load(own_server, bought)
        own_server.signal(signal.SIGKILL)
        with pytest.raises(StartError, match=r"the state server cannot be written: .*; the same command"):
            await load_histories(StateSettings(), f"redis://127.0.0.1:{free_port()}", bought.users, "", lambda n: None)


def fit(at: int, **given: Any) -> dict[str, Any]:
    return {
        "event_id": f"e{at}",
        "session_id": "s",
        "user_id": "u",
        "item_id": f"i{at}",
        "occurred_at": NOW_MS,
        **given,
    }


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_rows_take_part_are_left_out_or_are_bad_as_in_the_nightly_job(tmp_path: Path, kind: str) -> None:
    late = (NOW + timedelta(minutes=6)).isoformat()
    given = [
        *(fit(at) for at in range(8)),
        fit(0),
        fit(8, type="view"),
        fit(9, type="impression"),
        fit(10, user_id=None),
        fit(11, occurred_at=NOW_MS + 1000),
        fit(12, tenant="shop", user_id="u"),
    ]
    bad = [
        (fit(20, item_id=""), "item_id"),
        (fit(21, session_id=""), "session_id"),
        (fit(22, occurred_at="yesterday"), "occurred_at"),
        (fit(23, occurred_at=late), "occurred_at"),
        (fit(24, type="returned"), "type"),
        (fit(25, user_id="x" * 257), "user_id"),
        (fit(26, item_id="a\tb"), "item_id"),
    ]
    texts = [
        {key: None if value is None else str(value) for key, value in row.items()}
        for row in (*given, *(row for row, _ in bad))
    ]
    settings = IndexSettings(events=EventSettings(max_bad_share=0.5), threads=1, memory_limit_mb=512)
    stages = Stages(Silent())
    source = write(tmp_path / f"events.{kind}", texts)
    with purchases(
        settings, source, tmp_path / "load", stages, now=NOW, until=NOW, items=5, tenant="default"
    ) as bought:
        read = bought.read
        assert (read.rows, read.bad, read.repeated) == (21, 7, 1)
        assert (read.other_types, read.anonymous, read.later, read.users) == (2, 1, 1, 2)
        users = {(user.tenant, user.user_id): user for user in bought.users(0)}
        assert list(users) == [(user.tenant, user.user_id) for user in bought.users(0)]
        assert [user.user_id for user in bought.users(1)] == [list(users)[1][1]]
    assert list(users[("default", "u")].item_ids) == ["i0", "i1", "i2", "i3", "i4"]
    assert list(users[("shop", "u")].item_ids) == ["i12"]
    (quarantine,) = (tmp_path / "load" / "quarantine").iterdir()
    entries = [json.loads(line) for line in quarantine.read_text().splitlines()]
    assert [(entry["row"], entry["field"]) for entry in entries] == [
        (row, field) for row, (_, field) in enumerate(bad, len(given) + 1)
    ]


def test_too_many_bad_rows_and_a_missing_user_column_stop_the_load(tmp_path: Path) -> None:
    source = write(tmp_path / "events.jsonl", [fit(1), fit(2, occurred_at="never")])
    with pytest.raises(TooManyBadRows, match=r"1 of 2 events rows are bad"), loading(tmp_path, source):
        pass
    nobody = write(tmp_path / "nobody.jsonl", [{"session_id": "s", "item_id": "i", "occurred_at": NOW_MS}])
    with pytest.raises(SettingsError, match=r"set index.events.columns.user_id"), loading(tmp_path, nobody):
        pass


def test_users_are_whole_however_many_rows_come_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indexer.purchases.BATCH_ROWS", 3)
    log = visits(3, users=7, sessions=60)
    with loading(tmp_path, write(tmp_path / "log.jsonl", rows(log))) as bought:
        users = list(bought.users(0))
    assert sorted(user.user_id for user in users) == [f"user-{number}" for number in range(7)]
    for user in users:
        expected = counted(log, user.user_id)
        assert sorted(user.item_ids) == sorted(item.item_id for item in expected.items)
        assert user.anything.times[0] + 1 == expected.sessions


def test_the_digest_changes_with_files_and_settings(tmp_path: Path) -> None:
    one = write(tmp_path / "one.jsonl", rows(visits(0)))
    two = write(tmp_path / "two.jsonl", rows(visits(1)))
    seen = []
    for source, items, until in ((one, 5, None), (one, 5, None), (two, 5, None), (one, 6, None), (one, 5, NOW)):
        with loading(tmp_path, source, items, until) as bought:
            seen.append(bought.what)
    assert seen[0] == seen[1]
    assert len(set(seen)) == 4


def test_the_command_loads_into_the_embedded_server_and_says_what_it_did(tmp_path: Path) -> None:
    config = tmp_path / "feedline.toml"
    config.write_text(
        f'state.folder = "{tmp_path / "valkey"}"\nindex.threads = 1\n'
        'index.events.columns = {item_id = "sku", session_id = "basket", user_id = "card", occurred_at = "at"}\n'
    )
    till = [{"sku": "tea", "basket": "b", "card": f"c{at}", "at": "2026-05-01", "type": ""} for at in range(3)]
    source = write(tmp_path / "till.csv", till)
    command = ["events", "load", str(source), "--config", str(config), "--work", str(tmp_path / "load")]

    result = CliRunner().invoke(app, [*command, "--json"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert (summary["rows"], summary["users"], summary["loaded"]["users"], summary["loaded"]["known"]) == (3, 3, 3, 0)
    assert "load: done, 3 users" in result.stderr

    again = CliRunner().invoke(app, command)
    assert again.stdout == "3 users loaded, 3 of them merged with what was recorded\n"
    nothing = CliRunner().invoke(app, [*command, "--until", "2026-04-30"])
    assert nothing.stdout.startswith("0 users loaded")

    config.write_text(f'state.folder = "{tmp_path / "valkey"}"\nstate.history_items = 0\n')
    off = CliRunner().invoke(app, command)
    assert (off.exit_code, off.stdout) == (2, "")
    assert "state.history_items is 0" in off.stderr


async def test_the_export_of_the_service_can_be_loaded(server: Server, tmp_path: Path) -> None:
    async with state_at(server.url) as state, client_of(server.url) as client:
        await state.stream.record(batch(purchase(1, "tea", 0), purchase(2, "cup", 1), session="first"))
        before = await read(state, "u")
        await export(client, tmp_path / "events", StateKeys())
        await client.flushall()
        with loading(tmp_path, tmp_path / "events") as bought:
            assert (await load(server, bought)).users == 1
        assert await read(state, "u") == before
