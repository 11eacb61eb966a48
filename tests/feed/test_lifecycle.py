"""Starting, readiness, health, reflection, and stopping without a failed call."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from typer.testing import CliRunner

from protos import feed_pb2
from services import cli
from services.errors import StartError
from services.feed.app import FeedApp, open_app
from services.feed.servicer import SERVICE
from tests.feed.conftest import Client, client, settings_for, viewed
from tests.feed.process import serving
from tests.servers import babbling_server


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


@pytest.mark.parametrize("query", ["?no_such_option=1", ""])
async def test_a_state_server_that_cannot_be_asked_is_no_reason_not_to_start(
    tmp_path: Path, snapshots: Path, query: str
) -> None:
    async with babbling_server() as url, open_app(settings_for(tmp_path, state={"url": url + query})) as app:
        async with client(app) as feed:
            page = await feed.feed(session_id="s1", recent_events=[viewed("i6")])
        assert page.provenance.rung == feed_pb2.RUNG_RANKED
        assert "session_unavailable" in page.provenance.reasons


async def test_a_request_that_never_ends_does_not_keep_the_service_from_ending(tmp_path: Path, snapshots: Path) -> None:
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(open_app(settings_for(tmp_path, serve={"drain_s": 0})))
        reader, writer = await asyncio.open_connection("127.0.0.1", app.console_port)
        writer.write(b"POST /v1/feed HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n")
        writer.write(b"Content-Type: application/json\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")  # the handler waits for the body
        async with asyncio.timeout(10):
            await stack.aclose()
        writer.close()


async def test_a_burst_of_events_is_stored(app: FeedApp, feed: Client) -> None:
    calls = [feed.record(f"s{at}", viewed("i5", event_id="e")) for at in range(200)]
    assert sum(answer.stored for answer in await asyncio.gather(*calls)) == 200


async def test_tls_files_that_are_none_are_named(tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("none")
    files = dict.fromkeys(("tls_certificate", "tls_key"), tmp_path / "none.pem")
    with pytest.raises(StartError, match=r"serve\.tls_"):
        async with open_app(settings_for(tmp_path, serve=files)):
            pass


@pytest.mark.parametrize("option", ["--port", "--console-port"])
@pytest.mark.parametrize("port", ["-1", "65536"])
def test_a_port_out_of_range_is_refused(option: str, port: str) -> None:
    refused = CliRunner().invoke(cli.app, ["serve", option, port])
    assert refused.exit_code == 2
    assert "Usage" in refused.output


async def test_sigterm_under_load_fails_no_call_of_callers_that_heed_its_health(
    tmp_path: Path, snapshots: Path
) -> None:
    """grpc/grpc#37239: stop(grace) was not graceful: calls that came while it ran were cancelled."""
    async with serving("-m", "services.cli", folder=tmp_path, snapshots=snapshots) as (process, feed, console):
        answered = 0
        stopping: list[bool] = []

        async def call_while_ready() -> None:
            nonlocal answered
            async with httpx.AsyncClient() as web:
                while (await web.get(f"{console}/readyz")).status_code == 200:
                    for _ in range(5):  # a load balancer is late, too
                        assert (await feed.feed(recent_events=[viewed(f"i{answered % 900}")])).items
                        answered += 1
                    if answered >= 100 and not stopping:
                        stopping.append(True)
                        process.send_signal(signal.SIGTERM)

        await asyncio.gather(*(call_while_ready() for _ in range(10)))
        assert await process.wait() == 0
        assert answered >= 100


async def test_sigterm_answers_what_has_begun(tmp_path: Path, snapshots: Path) -> None:
    async with serving("-m", "services.cli", folder=tmp_path, snapshots=snapshots) as (process, feed, console):
        assert (await feed.feed()).items
        pending = [asyncio.create_task(feed.feed(recent_events=[viewed(f"i{at}")])) for at in range(20)]
        process.send_signal(signal.SIGTERM)
        pages = await asyncio.gather(*pending)
        assert all(page.items for page in pages)
        async with httpx.AsyncClient() as web:
            assert (await web.get(f"{console}/readyz")).status_code == 503
        assert await process.wait() == 0


async def test_it_starts_and_ranks_without_the_libraries_of_the_nightly_job(tmp_path: Path, snapshots: Path) -> None:
    code = """
import sys
sys.modules.update(dict.fromkeys(["torch", "sentence_transformers", "transformers", "duckdb", "onnx"]))
from services.cli import main
main()
"""
    async with serving("-c", code, folder=tmp_path, snapshots=snapshots) as (_, feed, _):
        assert (await feed.feed(recent_events=[viewed("i5")])).provenance.rung == feed_pb2.RUNG_RANKED
