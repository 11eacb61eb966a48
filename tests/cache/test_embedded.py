from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from cache.embedded import MAX_SOCKET_PATH_BYTES, EmbeddedServerError, EmbeddedValkey, ServerEvent
from tests.servers import client_of, short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as name:
        yield Path(name)


async def stored(server: EmbeddedValkey, key: str) -> bytes | None:
    async with client_of(server.url) as client:
        return cast("bytes | None", await client.get(key))


async def store(server: EmbeddedValkey, key: str, value: str) -> None:
    async with client_of(server.url) as client:
        await client.set(key, value)


async def test_the_server_listens_on_a_private_socket_only_and_keeps_what_it_must(folder: Path) -> None:
    async with EmbeddedValkey(folder, maxmemory_bytes=64 << 20) as server, client_of(server.url) as client:
        info = cast("dict[str, object]", await client.info("everything"))

        assert info["tcp_port"] == 0
        assert info["aof_enabled"] == 1
        assert (info["maxmemory"], info["maxmemory_policy"]) == (64 << 20, "noeviction")
        assert stat.S_IMODE(server.socket.stat().st_mode) == 0o700
        assert info["process_id"] == server.pid


async def test_data_survives_a_stop_and_a_start(folder: Path) -> None:
    async with EmbeddedValkey(folder) as server:
        await store(server, "k", "v")
    assert server.pid is None
    assert not server.socket.exists()

    async with EmbeddedValkey(folder) as server:
        assert await stored(server, "k") == b"v"


async def test_a_killed_server_is_started_again_with_its_data(folder: Path) -> None:
    events: asyncio.Queue[ServerEvent] = asyncio.Queue()
    async with EmbeddedValkey(folder, observe=events.put_nowait) as server, asyncio.timeout(20):
        for number in range(3):
            await store(server, "k", f"v{number}")
            killed = server.pid
            assert killed is not None

            os.kill(killed, signal.SIGKILL)

            assert [await events.get(), await events.get()] == [ServerEvent.DIED, ServerEvent.RESTARTED]
            assert server.pid not in {killed, None}
            assert await stored(server, "k") == b"v%d" % number
        assert server.restarts == 3


async def test_a_restart_that_fails_is_tried_again(folder: Path) -> None:
    events: asyncio.Queue[ServerEvent] = asyncio.Queue()
    async with EmbeddedValkey(folder, observe=events.put_nowait) as server, asyncio.timeout(20):
        assert server.pid is not None
        data = folder / "appendonlydir"
        data.rename(folder / "aside")
        data.write_text("not a folder")
        os.kill(server.pid, signal.SIGKILL)
        assert [await events.get(), await events.get()] == [ServerEvent.DIED, ServerEvent.START_FAILED]

        data.unlink()
        (folder / "aside").rename(data)

        while await events.get() is not ServerEvent.RESTARTED:
            pass
        assert server.restarts == 1


async def test_a_second_user_of_the_folder_is_told_who_has_it(folder: Path) -> None:
    async with EmbeddedValkey(folder) as server:
        with pytest.raises(EmbeddedServerError, match=f"in use by process {os.getpid()};"):
            await EmbeddedValkey(folder).__aenter__()

        assert server.pid is not None
    async with EmbeddedValkey(folder):
        pass


async def test_a_long_folder_gets_a_short_socket_in_a_private_place(folder: Path) -> None:
    deep = folder / ("x" * MAX_SOCKET_PATH_BYTES)
    async with EmbeddedValkey(deep) as server:
        await store(server, "k", "v")
        assert len(os.fsencode(server.socket)) <= MAX_SOCKET_PATH_BYTES
        assert stat.S_IMODE(server.socket.parent.stat().st_mode) == 0o700
    assert (deep / "appendonlydir").is_dir()

    server.socket.parent.chmod(0o777)
    try:
        with pytest.raises(EmbeddedServerError, match="only this user may enter"):
            await EmbeddedValkey(deep).__aenter__()
    finally:
        server.socket.parent.rmdir()


async def test_a_folder_with_odd_characters_works(folder: Path) -> None:
    async with EmbeddedValkey(folder / "a b%20?#'\"é") as server:
        await store(server, "k", "v")
        assert await stored(server, "k") == b"v"


async def test_a_folder_that_cannot_be_made_is_named(folder: Path) -> None:
    (folder / "file").write_text("")

    with pytest.raises(EmbeddedServerError, match=r"file/data: .*Not a directory"):
        await EmbeddedValkey(folder / "file" / "data").__aenter__()


async def test_a_server_that_ends_at_start_is_quoted(folder: Path) -> None:
    with pytest.raises(EmbeddedServerError, match=r"(?s)ended with status 1; it said:.*maxmemory-policy"):
        await EmbeddedValkey(folder, maxmemory_policy="nonsense").__aenter__()


CHILD = """
import asyncio, pathlib, sys
from cache.embedded import EmbeddedValkey
async def main():
    async with EmbeddedValkey(pathlib.Path(sys.argv[1])) as server:
        print(server.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@asynccontextmanager
async def service_in(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """Another process with an embedded server in the folder, and the server's process id."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, str(folder), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        yield process, int(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
async def test_the_server_ends_when_the_service_is_killed(folder: Path) -> None:
    async with asyncio.timeout(20), service_in(folder) as (service, server_pid):
        watched = os.pidfd_open(server_pid)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(watched, ended.set)
        try:
            service.kill()
            await ended.wait()
        finally:
            asyncio.get_running_loop().remove_reader(watched)
            os.close(watched)


async def test_a_service_takes_over_the_data_of_a_killed_one_at_once(folder: Path) -> None:
    async with service_in(folder) as (service, server_pid):
        async with client_of(f"unix://{folder / 'valkey.sock'}") as client:
            await client.set("k", "v")
        os.kill(server_pid, signal.SIGSTOP)  # It cannot notice that its parent dies.
        service.kill()
        await service.wait()
        asyncio.get_running_loop().call_later(0.2, os.kill, server_pid, signal.SIGCONT)

        async with EmbeddedValkey(folder) as server:
            assert server.pid != server_pid
            assert await stored(server, "k") == b"v"


async def test_a_server_that_was_left_over_is_shut_down_and_its_data_taken_over(folder: Path) -> None:
    async with EmbeddedValkey(folder) as abandoned:
        await store(abandoned, "k", "v")
        assert abandoned._lock is not None
        assert abandoned._supervisor is not None
        abandoned._supervisor.cancel()
        os.close(abandoned._lock)
        abandoned._lock = None

        async with EmbeddedValkey(folder) as server:
            assert await stored(server, "k") == b"v"


async def test_a_cancelled_start_leaves_neither_server_nor_lock(folder: Path) -> None:
    start = asyncio.create_task(EmbeddedValkey(folder).__aenter__())
    while not (folder / "valkey.log").exists():  # noqa: ASYNC110
        await asyncio.sleep(0)
    start.cancel()
    await asyncio.gather(start, return_exceptions=True)

    async with EmbeddedValkey(folder) as server:
        assert server.pid is not None
