"""A service of a small, known capacity, its Valkey behind a proxy."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.feed import app as wiring
from services.feed.app import FeedApp, open_app
from services.feed.rerank import Retrieved, retrieve
from services.feed.work import Work
from tests.faults.proxy import Proxy, proxy_to
from tests.feed.conftest import Client, client, settings_for
from tests.servers import Server, short_folder
from tests.snapshots import Shop, publish_shop

BATCH = 2
BATCH_S = 0.04
CAPACITY = BATCH / BATCH_S
"""Scorings a second at most: a batch is made to take at least BATCH_S, so that nobody need measure."""
PEAK = 0.75 * CAPACITY
"""The provisioned peak, requests a second: 1x."""
TIMEOUT_MS = 200.0


@dataclass(frozen=True)
class Stand:
    """A running service and what it runs on."""

    app: FeedApp
    feed: Client
    server: Server
    proxy: Proxy

    def metric(self, name: str, **labels: str) -> float:
        return self.app.metrics.registry.get_sample_value(name, labels) or 0.0


Opened = Callable[..., "AsyncIterator[Stand]"]


def paced(works: Sequence[Work]) -> list[Retrieved]:
    """The real first stage, at a known pace."""
    until = time.monotonic() + BATCH_S
    found = retrieve(works)
    time.sleep(max(0.0, until - time.monotonic()))
    return found


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one published snapshot of 1,000 items."""
    root = tmp_path_factory.mktemp("faults") / "snapshots"
    publish_shop(root, Shop())
    return root


@pytest.fixture
def valkey() -> Iterator[Server]:
    """A Valkey server for this test alone."""
    with short_folder() as folder:
        server = Server("valkey", Path(folder))
        server.start()
        yield server
        server.kill()


@asynccontextmanager
async def standing(folder: Path, shop: Path, valkey: Server, **sections: dict[str, Any]) -> AsyncIterator[Stand]:
    """The service, its Valkey server behind a proxy that breaks nothing yet."""
    async with proxy_to(valkey.port) as proxy:
        given: dict[str, dict[str, Any]] = {
            "snapshots": {"folder": shop},
            "state": {"url": f"redis://127.0.0.1:{proxy.port}", "timeout_ms": TIMEOUT_MS},
            "cache": {"timeout_ms": TIMEOUT_MS},
            "scoring": {"max_batch": BATCH, "admission": "fixed", "max_in_flight": 8},
        }
        for name, section in sections.items():
            given[name] = {**given.get(name, {}), **section}
        async with open_app(settings_for(folder, **given)) as app, client(app) as feed:
            yield Stand(app, feed, valkey, proxy)


@pytest.fixture
async def stand(tmp_path: Path, shop: Path, valkey: Server, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stand]:
    """The service at the known pace."""
    monkeypatch.setattr(wiring, "retrieve", paced)
    async with standing(tmp_path, shop, valkey) as running:
        yield running
