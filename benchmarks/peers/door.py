"""A bounded queue for servers that have none of their own: ASGI middleware."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_BODY = b'{"detail":"too many requests are inside"}'
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", str(len(_BODY)).encode())]


class Door:
    """Lets `most` requests in at a time; the next is answered 503 at once, before its body is read or parsed."""

    def __init__(self, app: App, most: int) -> None:
        self._app = app
        self._most = most
        self._inside = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """One request, or whatever else the server says."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._inside >= self._most:
            await send({"type": "http.response.start", "status": 503, "headers": _HEADERS})
            await send({"type": "http.response.body", "body": _BODY})
            return
        self._inside += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._inside -= 1
