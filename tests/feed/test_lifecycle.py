"""Starting, readiness, health, reflection, and stopping without a failed call."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from services.errors import StartError
from services.feed.app import FeedApp, open_app
from services.feed.servicer import SERVICE
from tests.feed.conftest import Client, client, settings_for, viewed


async def test_health_says_serving_when_ready(feed: Client) -> None:
    check: grpc.aio.UnaryUnaryMultiCallable[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse]
    check = feed.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=health_pb2.HealthCheckResponse.FromString,
    )
    for name in ("", SERVICE):
        answer = await check(health_pb2.HealthCheckRequest(service=name))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_reflection_is_a_setting(tmp_path: Path, snapshots: Path) -> None:
    ask = reflection_pb2.ServerReflectionRequest(list_services="")
    for wanted in (True, False):
        async with open_app(settings_for(tmp_path, serve={"reflection": wanted})) as app, client(app) as feed:
            call = feed.channel.stream_stream(
                "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
                response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
            )(iter([ask]))
            if not wanted:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call.read()
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
                continue
            answer = await call.read()
            assert isinstance(answer, reflection_pb2.ServerReflectionResponse)
            assert SERVICE in [service.name for service in answer.list_services_response.service]
            call.cancel()


async def test_a_port_that_is_taken_is_said(tmp_path: Path, app: FeedApp) -> None:
    for section, port in (("serve", app.grpc_port), ("console", app.console_port)):
        settings = settings_for(tmp_path / section, **{section: {"port": port}})
        with pytest.raises(StartError, match=rf"{section}\.port: 127\.0\.0\.1:{port} cannot be listened on"):
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(open_app(settings))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"serve": {"host": "0.0.0.0"}}, "serve.host: 0.0.0.0 is not loopback"),
        ({"console": {"host": "0.0.0.0"}}, "console.host: 0.0.0.0 is not loopback"),
        ({"serve": {"tls_certificate": "cert.pem"}}, "set both or neither"),
        ({"state": {"url": "http://localhost"}}, "state.url: Redis URL"),
    ],
)
async def test_unsafe_or_wrong_settings_do_not_start(
    tmp_path: Path, section: dict[str, dict[str, object]], message: str
) -> None:
    with pytest.raises(StartError, match=message):
        async with open_app(settings_for(tmp_path, **section)):
            pass


async def test_sigterm_drains_without_a_failed_call(tmp_path: Path, snapshots: Path) -> None:
    """grpc/grpc#37239: stop(grace) was not graceful."""
    settings = tmp_path / "feedline.toml"
    settings.write_text(
        f"[serve]\nport = 0\nlame_duck_s = 0.3\n[console]\nport = 0\n[snapshots]\nfolder = '{snapshots}'\n"
        f"[state]\nfolder = '{tmp_path / 'valkey'}'\n[log]\nformat = 'json'\n[scoring]\nmax_queue_delay_ms = 50\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "services.cli",
        "serve",
        "--config",
        str(settings),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    try:
        grpc_port, console_port = await _ready(process)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel, httpx.AsyncClient() as web:
            feed = Client(channel)
            assert (await feed.feed()).items
            pending = [asyncio.create_task(feed.feed(recent_events=[viewed(f"i{at}")])) for at in range(20)]
            process.send_signal(signal.SIGTERM)
            pages = await asyncio.gather(*pending)
            assert all(page.items for page in pages)
            assert (await web.get(f"http://127.0.0.1:{console_port}/readyz")).status_code == 503
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ready(process: asyncio.subprocess.Process) -> tuple[int, int]:
    """The ports, from the log line that says "ready"."""
    assert process.stderr is not None
    async with asyncio.timeout(60):
        async for line in process.stderr:
            if line.startswith(b"{") and (entry := json.loads(line))["event"] == "ready":
                return entry["grpc_port"], entry["console_port"]
    raise AssertionError("the service ended before it was ready")
