"""The console of the real service, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from services.feed.app import FeedApp
from tests.feed.conftest import app, snapshots

__all__ = ["app", "snapshots"]


def http_client(app: FeedApp) -> httpx.AsyncClient:
    """A client of the app's console."""
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{app.console_port}", timeout=10)


@pytest.fixture
async def http(app: FeedApp) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `app`'s console."""
    async with http_client(app) as connected:
        yield connected
