"""Health, metrics, headers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from services.console.app import create_console
from services.console.guard import CONTENT_SECURITY_POLICY
from services.console.health import Readiness
from services.feed.app import FeedApp, open_app
from tests.console.conftest import http_client
from tests.feed.conftest import settings_for


async def test_alive_and_ready_with_a_whole_snapshot(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).text == "alive\n"
    ready = await http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {
        "ready": True, "degraded": False, "snapshot_id": "20260101T000000Z-00000007", "reasons": [], "refused": ""
    }  # fmt: skip


async def test_without_a_snapshot_it_is_ready_and_degraded_and_the_page_still_opens(tmp_path: Path) -> None:
    async with open_app(settings_for(tmp_path)) as app, http_client(app) as http:
        ready = await http.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["degraded"]
        assert ready.json()["reasons"] == ["no_snapshot"]
        assert (await http.get("/v1/items")).json() == {"snapshot_id": "", "items": []}
        assert (await http.get("/")).status_code == 200


async def test_not_ready_is_503_and_tells_the_same(app: FeedApp) -> None:
    draining = Readiness(ready=False, degraded=False, snapshot_id="s", reasons=())
    console = create_console(
        servicer=app.servicer, live=app.live, readiness=lambda: draining, registry=app.metrics.registry, write_token=""
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(console), base_url="http://console") as http:
        answer = await http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json() == asdict(draining) | {"reasons": []}


async def test_metrics_count_what_was_answered(http: httpx.AsyncClient) -> None:
    await http.post("/v1/feed", json={})
    await http.post("/v1/feed", json={"page_size": -1})
    answer = await http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert samples["feedline_pages_total", "false", "popular"] == 1
    assert samples["feedline_invalid_requests_total", "GetFeed"] == 1


async def test_every_answer_keeps_scripts_frames_and_other_sites_out(http: httpx.AsyncClient) -> None:
    for path in ("/", "/static/console.js", "/static/console.css", "/readyz", "/v1/items", "/nowhere"):
        headers = (await http.get(path)).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"], path
    assert "unsafe" not in CONTENT_SECURITY_POLICY


async def test_the_documentation_pages_that_need_a_cdn_are_off(http: httpx.AsyncClient) -> None:
    for path in ("/docs", "/redoc"):
        assert (await http.get(path)).status_code == 404


async def test_a_filter_is_sent_as_the_catalogue_spells_it(http: httpx.AsyncClient) -> None:
    """Without a value, a browser sends the text of an option with its spaces collapsed."""
    text = (await http.get("/")).text
    assert '<option value="tea">' in text
    assert '<option value="north">' in text


async def test_the_page_holds_no_inline_script_or_style(http: httpx.AsyncClient) -> None:
    text = (await http.get("/")).text
    assert "<style" not in text
    assert " style=" not in text
    assert text.count("<script") == text.count('<script type="module" src="/static/')
    assert "https://" not in text
