"""Asks a worker's console, over its Unix socket."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's answer, whole."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class NotAsked(Exception):
    """The worker does not listen: nothing was sent, another may be asked."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def ask(
    console: Path, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b"",
    *, timeout_s: float = 10.0,
) -> Answer:  # fmt: skip
    """One request; blocks. Raises NotAsked; OSError or HTTPException when an answer was begun and not ended."""
    connection = _Connection(console, timeout_s)
    try:
        try:
            connection.connect()
        except (ConnectionError, FileNotFoundError) as error:
            raise NotAsked(f"{console.name}: {error.strerror}") from error
        connection.request(method, target, body or None, dict(headers or {}))
        got = connection.getresponse()
        return Answer(got.status, tuple(got.getheaders()), got.read())
    finally:
        connection.close()
