from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protos import feed_pb2
from services.feed.app import open_app
from tests.feed.conftest import client, settings_for, viewed
from tests.snapshots import Shop, publish_shop

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("gpu_index", ["flat", "snapshot"])
async def test_a_service_on_a_device_ranks_as_one_on_the_cpu(tmp_path: Path, gpu_index: str) -> None:
    publish_shop(tmp_path / "snapshots", Shop(count=3000, tower=True, strong=True))
    devices: dict[str, dict[str, Any]] = {
        "retrieval": {"device": "cuda", "gpu_index": gpu_index},
        "scoring": {"device": "cuda", "cascade": 0.5},
    }
    pages = []
    for sections in ({"scoring": {"cascade": 0.5}}, devices):
        settings = settings_for(tmp_path, cache={"enabled": False}, **sections)
        async with open_app(settings) as app, client(app) as feed:
            asked = [
                await feed.feed(session_id=f"s{row}", recent_events=[viewed(f"i{row}")], category=category)
                for row in range(20)
                for category in ("", "tea")
            ]
        assert all(page.provenance.rung == feed_pb2.RUNG_RANKED for page in asked)
        pages.append([[item.item_id for item in page.items] for page in asked])
    same = sum(one == other for one, other in zip(*pages, strict=True))
    assert same >= 0.95 * len(pages[0])  # float16 changes the order of near-ties
