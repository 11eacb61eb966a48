"""The port that all workers listen on: chosen and held by the parent, shared by SO_REUSEPORT."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from services.errors import StartError


@contextmanager
def shared_port(host: str, port: int) -> Iterator[int]:
    """The port (0: a free one), which stays this service's while entered, whichever worker listens on it.

    Whoever sets SO_REUSEPORT may listen beside us, and gets a part of our callers: so first it is seen that nobody has
    the port. Raises StartError when somebody does.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            free = alone.getsockname()
        holder = socket.socket(family, kind, protocol)
    except OSError as error:
        raise StartError(f"serve.port: {host}:{port} cannot be listened on: {error.strerror or error}") from error
    with holder:
        # Bound and never listening: it gets no connection, and keeps the number.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind(free)
        yield int(free[1])
