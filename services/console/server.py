"""The console's HTTP, on a port or on a Unix socket."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from services.errors import StartError
from services.settings import Console


class ConsoleServer(uvicorn.Server):
    """The console's port. Signals are the service's own affair."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves the signal handlers as they are."""
        yield

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Console, app: FastAPI, drain_s: float, at: Path | None = None) -> AsyncIterator[int]:
        """Listens while entered; the port, or 0 where it listens on the Unix socket `at` instead.

        When left, waits `drain_s` for requests that have begun, then cuts them.
        """
        listener = _listen_at(at) if at else _listen(settings.host, settings.port)
        server = cls(
            uvicorn.Config(
                app,
                log_level=logging.WARNING,
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=math.ceil(drain_s),
            )
        )
        task = asyncio.create_task(server.serve(sockets=[listener]), name="console")
        try:
            yield 0 if at else int(listener.getsockname()[1])
        finally:
            server.should_exit = True
            await task
            listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # Named, else asyncio leaves Nagle on.
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise StartError(f"console.port: {host}:{port} cannot be listened on: {error.strerror or error}") from error
    return listener


def _listen_at(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # of a worker that died
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    return listener
