"""Fixtures for all tests."""

from tests.servers import _servers, own_server, server

__all__ = ["_servers", "own_server", "server"]
