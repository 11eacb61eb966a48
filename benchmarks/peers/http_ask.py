"""Asks a server over HTTP/1.1 with connections that stay open: an `Ask` of the load generator, lean enough for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import cast

from services.bench.load.ask import OK, Outcome

TIMED_OUT = "DEADLINE_EXCEEDED"
REFUSED = "REFUSED"
_END = b"\r\n\r\n"


def post(path: str, body: bytes) -> bytes:
    """A whole POST request of JSON, as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + _END + body


class Response:
    """A response as it comes in. Knows Content-Length and chunked bodies, as loopback servers answer POST requests."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.closes = False
        self._data = bytearray()
        self._begins = 0
        self._length: int | None = None

    @property
    def begun(self) -> bool:
        """Whether anything has come."""
        return bool(self._data)

    def feed(self, data: bytes) -> bool:
        """Whether it is whole. Raises ValueError on what is not HTTP/1.1."""
        self._data += data
        if not self._begins and not self._head():
            return False
        if self._length is not None:
            self.body = bytes(self._data[self._begins : self._begins + self._length])
            return len(self.body) == self._length
        return self._chunks()

    def _head(self) -> bool:
        end = self._data.find(_END)
        if end < 0:
            return False
        lines = bytes(self._data[:end]).split(b"\r\n")
        version, _, rest = lines[0].partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise ValueError(f"expected HTTP/1.1, got {lines[0]!r:.60}")
        self.status = int(rest[:3])
        fields = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
        }
        self.closes = fields.get(b"connection", b"").lower() == b"close"
        if fields.get(b"transfer-encoding", b"").lower() != b"chunked":
            self._length = int(fields.get(b"content-length", b"0"))
        self._begins = end + len(_END)
        return True

    def _chunks(self) -> bool:
        at = self._begins
        parts: list[bytes] = []
        while True:
            end = self._data.find(b"\r\n", at)
            if end < 0:
                return False
            size = int(bytes(self._data[at:end]).partition(b";")[0], 16)
            at = end + 2
            if len(self._data) < at + size + 2:
                return False
            if not size:
                self.body = b"".join(parts)
                return True
            parts.append(bytes(self._data[at : at + size]))
            at += size + 2


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._response = Response()
        self._waiter: asyncio.Future[Response] | None = None

    @property
    def usable(self) -> bool:
        """Whether another request may go over it."""
        return self._transport is not None and not self._transport.is_closing() and self._waiter is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio calls it."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """As asyncio calls it."""
        if self._waiter is None or self._waiter.done():
            self.close()
            return
        try:
            whole = self._response.feed(data)
        except ValueError as error:
            self._waiter.set_exception(ConnectionError(str(error)))
            return
        if whole:
            self._waiter.set_result(self._response)

    def connection_lost(self, exc: Exception | None) -> None:
        """As asyncio calls it."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionResetError("closed before the answer was whole"))

    async def exchange(self, request: bytes) -> Response:
        """Sends and waits. Raises ConnectionError; `unanswered` tells whether anything had come."""
        assert self._transport is not None
        self._response = Response()
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    @property
    def unanswered(self) -> bool:
        """Whether nothing came of the last request."""
        return not self._response.begun

    def close(self) -> None:
        """Closes it, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()


class HttpAsk:
    """Sends `requests[index]` (see `post`) to a port of loopback over a free connection, or a new one.

    A connection that the server closed while it was idle is replaced, once, as HTTP clients do. An answer of 200 is
    JSON with `rung`, or a list of one such.
    """

    def __init__(self, port: int, requests: Sequence[bytes], *, deadline_s: float) -> None:
        self._port = port
        self._requests = requests
        self._deadline_s = deadline_s
        self._free: list[Connection] = []

    async def __call__(self, index: int) -> Outcome:
        """As `Ask` says."""
        try:
            async with asyncio.timeout(self._deadline_s):
                response = await self.fetch(index)
        except TimeoutError:
            return Outcome(code=TIMED_OUT)
        except OSError:
            return Outcome(code=REFUSED)
        if response.status != 200:
            return Outcome(code=f"HTTP {response.status}", size=len(response.body))
        return Outcome(code=OK, rung=str(answer_of(response.body)["rung"]), size=len(response.body))

    async def fetch(self, index: int) -> Response:
        """The response. Raises OSError."""
        while self._free:
            connection = self._free.pop()
            if not connection.usable:
                continue
            try:
                return await self._over(connection, index)
            except ConnectionError:
                if not connection.unanswered:
                    raise
                break
        return await self._over(await self._connect(), index)

    async def _over(self, connection: Connection, index: int) -> Response:
        try:
            response = await connection.exchange(self._requests[index])
        except BaseException:
            connection.close()
            raise
        if response.closes:
            connection.close()
        else:
            self._free.append(connection)
        return response

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
        return connection

    def close(self) -> None:
        """Closes all connections that are free."""
        while self._free:
            self._free.pop().close()


def answer_of(body: bytes) -> dict[str, list[str] | str]:
    """The fields of the one answer. Raises ValueError on anything else."""
    found = json.loads(body)
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if not isinstance(found, dict) or "rung" not in found or "items" not in found:
        raise ValueError(f"expected items and rung, got {body!r:.80}")
    return found
