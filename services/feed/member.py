"""A service that is one of several processes of one machine, all behind one port."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Member:
    """`console`: the Unix socket of this process's console; the parent has the port. `lock`: a file of all of them."""

    console: Path
    lock: Path

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits until no other of them has its turn. The kernel ends the turn of one that dies."""
        with self.lock.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
