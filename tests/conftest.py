"""Fixtures for all tests."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the commands do: tests share their cores, too

from tests.servers import _servers, own_server, server

__all__ = ["_servers", "own_server", "server"]
