"""The scripted shopper against a real service in a process of its own; and nothing is left behind."""

from __future__ import annotations

import asyncio
import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from cache.embedded import EmbeddedValkey
from services.client import FeedClient
from services.demo import shopper
from services.demo.children import serving
from services.demo.story import Story
from services.errors import StartError
from tests.snapshots import Shop, publish_shop


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Settings of a service over a small snapshot, with time budgets of a busy machine."""
    publish_shop(tmp_path / "snapshots", Shop())
    path = tmp_path / "demo.toml"
    path.write_text(
        f"snapshots.folder = {json.dumps(str(tmp_path / 'snapshots'))}\n"
        f"state.folder = {json.dumps(str(tmp_path / 'valkey'))}\n"
        "state.timeout_ms = 200\ncache.timeout_ms = 200\nbudget.page_ms = 2000\nbudget.features_ms = 300\n",
        encoding="utf-8",
    )
    return path


async def test_every_step_shows_what_it_claims(config: Path, tmp_path: Path) -> None:
    out = io.StringIO()
    story = Story(Console(file=out, width=110))
    async with serving(config, tmp_path / "serve.log", grpc_port=0, console_port=0) as service:
        ann = shopper.Shopper("Ann")
        async with FeedClient(service.target, timeout_s=5) as client:
            popular = await shopper.cold_start(story, client, ann)
            page = await shopper.clicks(story, client, ann, popular)
            await shopper.same_question(story, client, ann, page)
            await shopper.redis_killed(story, client, ann, tmp_path / "valkey")
        await shopper.drained(story, service, ann, popular)
    told = story.document()
    assert told["held"], out.getvalue()
    assert len(told["steps"]) == 7
    assert [step["provenance"]["cache"] for step in told["steps"][:1]] == ["CACHE_OUTCOME_UNUSED"]
    assert told["steps"][4]["provenance"]["cache"] == "CACHE_OUTCOME_LOCAL"
    assert "NOT SHOWN" not in out.getvalue()
    json.dumps(told, allow_nan=False)


async def test_a_claim_that_does_not_hold_is_said_plainly() -> None:
    out = io.StringIO()
    story = Story(Console(file=out, width=80))
    with story.step("A step", "Why it matters.") as step:
        story.claim(step, "the sky is green", held=False)
    assert not story.document()["held"]
    assert "NOT SHOWN: the sky is green" in out.getvalue()


async def test_an_interrupted_demo_leaves_neither_service_nor_valkey(config: Path, tmp_path: Path) -> None:
    started = asyncio.Event()

    async def demo() -> None:
        async with serving(config, tmp_path / "serve.log", grpc_port=0, console_port=0):
            started.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(demo())
    await started.wait()
    pid = await shopper.server_pid(EmbeddedValkey(tmp_path / "valkey").url)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_service_that_cannot_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    config = tmp_path / "demo.toml"
    config.write_text("serve.port = -1\n", encoding="utf-8")
    with pytest.raises(StartError, match=r"serve\.port"):
        async with serving(config, tmp_path / "serve.log", grpc_port=0, console_port=0):
            pass
