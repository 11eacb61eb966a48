"""A TCP proxy that breaks what passes through it, between the service and its real server."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum

_CHUNK = 65_536


class Fault(Enum):
    """What becomes of connections and replies."""

    NONE = "none"
    REFUSE = "refuse"  # Nobody listens, and what was open is cut.
    SILENCE = "silence"  # Connections are taken; nothing is ever said on them.
    SLOW = "slow"  # Every reply comes `delay_s` late.
    TRICKLE = "trickle"  # A reply comes byte by byte, and takes `delay_s` in all.
    TRUNCATE = "truncate"  # Half a reply, and the connection is cut.
    HALF = "half"  # Half a reply, and never the rest.
    GARBAGE = "garbage"  # Bytes that are not the protocol.
    NONSENSE = "nonsense"  # The protocol, but replies to questions that nobody asked.


_NONSENSE = (b":-7\r\n", b"+OK\r\n", b"$5\r\nhello\r\n", b"$-1\r\n", b"*0\r\n", b"*2\r\n:1\r\n$1\r\nx\r\n")


class Proxy:
    """Listens on `port` of loopback and forwards to `target`. `fault` holds for open connections, too."""

    def __init__(self, target: int, *, delay_s: float = 1.0, seed: int = 1) -> None:
        self.port = 0
        self._target = target
        self._delay_s = delay_s
        self._rng = random.Random(seed)
        self._fault = Fault.NONE
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    async def set(self, fault: Fault) -> None:
        """From now on, this fault alone. What a fault has spoilt is cut when it ends."""
        was, self._fault = self._fault, fault
        if Fault.REFUSE in {was, fault} or (was is not Fault.NONE and fault is Fault.NONE):
            await self._cut()
        if fault is Fault.REFUSE:
            await self._deaf()
        elif self._listener is None:
            self._listener = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
            self.port = self._listener.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Ends everything."""
        await self._deaf()
        await self._cut()

    async def _deaf(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _cut(self) -> None:
        cut = tuple(self._open)
        for task in cut:
            task.cancel()
        await asyncio.gather(*cut, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._target)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, far))
                both.create_task(self._reply(far_reader, writer))
        except (OSError, asyncio.CancelledError, ExceptionGroup):
            pass  # One side hung up, or the connection is cut: both are how a connection ends.
        finally:
            self._open.discard(task)
            for side in (writer, far):
                if side is not None:
                    side.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            if self._fault is not Fault.SILENCE:
                writer.write(chunk)
                await writer.drain()
        raise ConnectionResetError

    async def _reply(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK):
            await self._spoil(chunk, writer)
            await writer.drain()
        raise ConnectionResetError

    async def _spoil(self, chunk: bytes, writer: asyncio.StreamWriter) -> None:
        half = chunk[: len(chunk) // 2]
        match self._fault:
            case Fault.NONE:
                writer.write(chunk)
            case Fault.SLOW:
                await asyncio.sleep(self._delay_s)
                writer.write(chunk)
            case Fault.TRICKLE:
                for byte in chunk:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(self._delay_s / len(chunk))
            case Fault.TRUNCATE:
                writer.write(half)
                await writer.drain()
                raise ConnectionResetError
            case Fault.HALF:
                writer.write(half)
                await asyncio.Event().wait()
            case Fault.GARBAGE:
                writer.write(self._rng.randbytes(len(chunk)) + b"\r\n")
            case Fault.NONSENSE:
                writer.write(self._rng.choice(_NONSENSE))
            case Fault.SILENCE | Fault.REFUSE:
                pass


@asynccontextmanager
async def proxy_to(target: int, *, delay_s: float = 1.0) -> AsyncIterator[Proxy]:
    """A proxy to a port of loopback, without a fault so far."""
    proxy = Proxy(target, delay_s=delay_s)
    await proxy.set(Fault.NONE)
    try:
        yield proxy
    finally:
        await proxy.close()
