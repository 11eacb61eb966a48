"""The client over real channels: to a server that answers by a script, and to the service itself with TLS."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme
from typer.testing import CliRunner

from protos import feed_pb2, feed_pb2_grpc
from services import cli
from services.client import FeedClient, Tls
from services.feed.app import open_app
from services.retry import Backoff, RetryBudget
from tests.feed.conftest import settings_for
from tests.snapshots import Shop, publish_shop

CONFIG = Path(__file__).parents[1] / "protos" / "service_config.json"
Script = Callable[[int, grpc.aio.ServicerContext[object, object]], Awaitable[None]]
_QUICK = Backoff(attempts=3, first_s=0.001, longest_s=0.002)


class Scripted(feed_pb2_grpc.FeedServiceServicer):
    """Real gRPC; what happens at call number 0, 1, ... is the test's."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.peers: list[str] = []

    @property
    def calls(self) -> int:
        return len(self.peers)

    async def GetFeed(  # noqa: N802
        self, request: feed_pb2.GetFeedRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> feed_pb2.GetFeedResponse:
        self.peers.append(context.peer())
        await self._script(self.calls - 1, context)
        return feed_pb2.GetFeedResponse(next_page_token=str(self.calls))

    async def RecordEvents(  # noqa: N802
        self, request: feed_pb2.RecordEventsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> feed_pb2.RecordEventsResponse:
        self.peers.append(context.peer())
        await self._script(self.calls - 1, context)
        return feed_pb2.RecordEventsResponse(stored=len(request.events))


@asynccontextmanager
async def scripted(script: Script) -> AsyncIterator[tuple[Scripted, str]]:
    server, servicer = grpc.aio.server(), Scripted(script)
    feed_pb2_grpc.add_FeedServiceServicer_to_server(servicer, server)  # type: ignore[no-untyped-call,unused-ignore]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


def failing(code: grpc.StatusCode, times: float = float("inf")) -> Script:
    async def script(number: int, context: grpc.aio.ServicerContext[object, object]) -> None:
        if number < times:
            await context.abort(code, "as scripted")

    return script


async def no_failure(_number: int, _context: grpc.aio.ServicerContext[object, object]) -> None:
    pass


REQUEST = feed_pb2.GetFeedRequest()
RECORD = feed_pb2.RecordEventsRequest()


async def test_unavailable_is_asked_again() -> None:
    async with scripted(failing(grpc.StatusCode.UNAVAILABLE, 2)) as (service, target):
        async with FeedClient(target, backoff=_QUICK) as client:
            assert (await client.get_feed(REQUEST)).next_page_token == "3"
        assert service.calls == 3


async def test_after_the_last_attempt_the_status_is_the_callers() -> None:
    async with scripted(failing(grpc.StatusCode.UNAVAILABLE)) as (service, target):
        async with FeedClient(target, backoff=_QUICK) as client:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await client.get_feed(REQUEST)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        assert service.calls == 3


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code not in {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}]
)
async def test_no_other_status_is_asked_again(code: grpc.StatusCode) -> None:
    async with scripted(failing(code)) as (service, target):
        async with FeedClient(target, backoff=_QUICK) as client:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await client.get_feed(REQUEST)
        assert failed.value.code() is code
        assert service.calls == 1


async def test_of_a_service_that_fails_for_all_a_tenth_is_asked_again_and_the_burst() -> None:
    async with scripted(failing(grpc.StatusCode.UNAVAILABLE)) as (service, target):
        async with FeedClient(target, backoff=_QUICK, budget=RetryBudget(0.1, burst=5)) as client:
            failed = await asyncio.gather(*(client.get_feed(REQUEST) for _ in range(200)), return_exceptions=True)
        assert all(isinstance(one, grpc.aio.AioRpcError) for one in failed)
        assert 200 <= service.calls <= 200 + 20 + 5


async def test_the_deadline_covers_all_attempts() -> None:
    async def slow(_number: int, context: grpc.aio.ServicerContext[object, object]) -> None:
        await asyncio.sleep(0.15)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "late")

    async with scripted(slow) as (_, target):
        async with FeedClient(target, timeout_s=0.2, backoff=_QUICK) as client:
            begun = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await client.get_feed(REQUEST)
        assert time.monotonic() - begun < 5  # three attempts of 0.2 s and more are not it; the machine may be slow
        assert failed.value.code() in {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize(("event_id", "calls"), [("e1", 2), ("", 1)])
async def test_events_are_sent_again_only_where_a_repetition_is_known(event_id: str, calls: int) -> None:
    request = feed_pb2.RecordEventsRequest(session_id="s", events=[feed_pb2.Event(event_id=event_id, item_id="i1")])
    async with scripted(failing(grpc.StatusCode.UNAVAILABLE, 1)) as (service, target):
        async with FeedClient(target, backoff=_QUICK) as client:
            result = await asyncio.gather(client.record_events(request), return_exceptions=True)
        assert service.calls == calls
        assert isinstance(result[0], grpc.aio.AioRpcError) == (calls == 1)


async def test_calls_take_turns_over_the_connections() -> None:
    async with scripted(no_failure) as (service, target), FeedClient(target, connections=3) as client:
        for _ in range(12):
            await client.get_feed(REQUEST)
        assert len(set(service.peers)) == 3
        assert service.peers[:3] == service.peers[3:6]


async def test_a_page_that_takes_its_time_is_asked_for_twice_where_hedging_is_on() -> None:
    released = asyncio.Event()

    async def first_hangs(number: int, _context: grpc.aio.ServicerContext[object, object]) -> None:
        if number == 0:
            await released.wait()

    async with scripted(first_hangs) as (service, target):
        async with FeedClient(target, connections=2, hedge_s=0.02, timeout_s=20) as client:
            assert (await client.get_feed(REQUEST)).next_page_token == "2"
            assert service.calls == 2
            assert (await client.get_feed(REQUEST)).next_page_token == "3"
        released.set()


async def test_hedges_come_out_of_the_same_budget() -> None:
    async def slow(_number: int, _context: grpc.aio.ServicerContext[object, object]) -> None:
        await asyncio.sleep(0.05)

    async with scripted(slow) as (service, target):
        async with FeedClient(target, hedge_s=0.001, timeout_s=20, budget=RetryBudget(0.1, burst=2)) as client:
            await asyncio.gather(*(client.get_feed(REQUEST) for _ in range(50)))
        assert 50 < service.calls <= 50 + 5 + 2


async def test_the_service_config_makes_a_channel_of_any_language_ask_again_and_no_more_than_it_may() -> None:
    options = [("grpc.service_config", CONFIG.read_text(encoding="utf-8"))]
    for fails, calls in ((2, 1), (float("inf"), 50)):
        async with scripted(failing(grpc.StatusCode.UNAVAILABLE, fails)) as (service, target):
            channel = grpc.aio.insecure_channel(target, options=options)
            stub = feed_pb2_grpc.FeedServiceStub(channel)
            asked = await asyncio.gather(*(stub.GetFeed(REQUEST) for _ in range(calls)), return_exceptions=True)
            await channel.close()
        refused = [one.code() for one in asked if isinstance(one, grpc.aio.AioRpcError)]
        assert refused == [grpc.StatusCode.UNAVAILABLE] * (0 if calls == 1 else calls)
        assert calls + 2 <= service.calls <= calls + 10


async def test_with_the_service_config_no_other_status_and_no_event_is_asked_again() -> None:
    options = [("grpc.service_config", CONFIG.read_text(encoding="utf-8"))]
    for code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE):
        async with scripted(failing(code)) as (service, target):
            channel = grpc.aio.insecure_channel(target, options=options)
            stub = feed_pb2_grpc.FeedServiceStub(channel)
            call = stub.GetFeed(REQUEST) if code is grpc.StatusCode.INTERNAL else stub.RecordEvents(RECORD)
            assert await call.code() is code
            await channel.close()
            assert service.calls == 1


async def test_with_the_service_config_the_service_gives_a_page(tmp_path: Path) -> None:
    publish_shop(tmp_path / "snapshots", Shop(count=30))
    options = [("grpc.service_config", CONFIG.read_text(encoding="utf-8"))]
    async with open_app(settings_for(tmp_path)) as app:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{app.grpc_port}", options=options)
        assert (await feed_pb2_grpc.FeedServiceStub(channel).GetFeed(REQUEST)).items
        await channel.close()


@asynccontextmanager
async def secured(tmp_path: Path, *, mutual: bool) -> AsyncIterator[tuple[str, Tls]]:
    """The service with TLS: its address, and what a client needs."""
    publish_shop(tmp_path / "snapshots", Shop(count=30))
    authority = trustme.CA()
    files = {name: tmp_path / f"{name}.pem" for name in ("ca", "server", "server_key", "own", "own_key")}
    authority.cert_pem.write_to_path(str(files["ca"]))
    server, own = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("client")
    for cert, name in ((server, "server"), (own, "own")):
        cert.cert_chain_pems[0].write_to_path(str(files[name]))
        cert.private_key_pem.write_to_path(str(files[f"{name}_key"]))
    serve = {"tls_certificate": files["server"], "tls_key": files["server_key"]}
    if mutual:
        serve["tls_client_ca"] = files["ca"]
    async with open_app(settings_for(tmp_path, serve=serve)) as app:
        yield f"127.0.0.1:{app.grpc_port}", Tls(files["ca"], files["own"], files["own_key"])


async def test_tls_by_the_authority_that_is_given(tmp_path: Path) -> None:
    async with secured(tmp_path, mutual=False) as (target, tls):
        async with FeedClient(target, tls=Tls(ca=tls.ca), timeout_s=10) as client:
            assert (await client.get_feed(REQUEST)).items
        for wrong in (None, Tls()):
            async with FeedClient(target, tls=wrong, backoff=_QUICK, rng=random.Random(1)) as client:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await client.get_feed(REQUEST)
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_service_that_asks_for_a_certificate_gets_the_clients(tmp_path: Path) -> None:
    async with secured(tmp_path, mutual=True) as (target, tls):
        async with FeedClient(target, tls=tls, timeout_s=10) as client:
            assert (await client.get_feed(REQUEST)).items
        async with FeedClient(target, tls=Tls(ca=tls.ca), backoff=_QUICK) as client:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await client.get_feed(REQUEST)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        arguments = ["request", "--target", target, "--ca", str(tls.ca), "--timeout", "10", "--json"]
        own = ["--certificate", str(tls.certificate), "--key", str(tls.key)]
        printed = await asyncio.to_thread(CliRunner().invoke, cli.app, [*arguments, *own])
        assert printed.exit_code == 0, printed.output
        assert '"RUNG_POPULAR"' in printed.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--certificate", "own.pem"], "--certificate and --key: give both or neither"),
        (["--ca", "none.pem"], "none.pem: No such file or directory"),
    ],
)
def test_tls_files_that_are_not_there_are_named(arguments: list[str], message: str) -> None:
    refused = CliRunner().invoke(cli.app, ["request", *arguments])
    assert refused.exit_code == 2
    assert message in refused.output
