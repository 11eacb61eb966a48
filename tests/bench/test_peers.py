"""The comparison with other servers, as far as it needs none of them: one of them each where they are installed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.bench import (
    MIX,
    PeersOptions,
    parsed_loads,
    parsed_systems,
    peers,
    saturate,
    turned,
)
from benchmarks.peers.door import Door, Message
from benchmarks.peers.http_ask import REFUSED, TIMED_OUT, HttpAsk, Response, answer_of, post
from benchmarks.peers.report import rows, table
from benchmarks.peers.rule import Limits, limits_of
from benchmarks.peers.serving import Serving, environment_of
from benchmarks.peers.systems import FEEDLINE, PEERS, Place, body, left_behind, running
from benchmarks.peers.two_stages import Asked, TwoStages
from services.bench.load.arrivals import Plan, Step, poisson
from services.bench.load.ask import OK, RANKED, Outcome
from services.bench.load.measure import figures
from services.bench.load.mix import Requests
from services.bench.load.run import Boundary, Measured, Sample
from services.bench.load.shop import of_snapshots
from services.errors import StartError
from tests.snapshots import Shop, publish_shop

ANSWER = json.dumps({"items": ["a"], "scores": [1.0], "rung": RANKED}).encode()
VENVS = os.environ.get("FEEDLINE_PEERS_VENVS", "")
PROGRAMS = Path(VENVS).absolute() / "peers" / "bin"
INSTALLED = bool(VENVS) and (PROGRAMS / "python").exists()


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one published snapshot of 1,000 items."""
    root = tmp_path_factory.mktemp("peers") / "snapshots"
    publish_shop(root, Shop())
    return root


def test_the_door_follows_what_a_system_can_do_and_two_batches_fit_behind_it() -> None:
    assert limits_of(100.0, 0.147) == Limits(door=10, batch=5)
    assert limits_of(1000.0, 0.147) == Limits(door=103, batch=16)
    assert limits_of(1.0, 0.147) == Limits(door=2, batch=1)


def test_loads_and_systems_are_read_and_what_is_none_is_named() -> None:
    assert parsed_loads("0.5, 1,4") == (0.5, 1.0, 4.0)
    assert parsed_systems("ray, feedline,ray") == ("ray", FEEDLINE)
    assert parsed_systems("") == (FEEDLINE, *PEERS)
    for text in ("1,x", "0", "nan", "inf", ""):
        with pytest.raises(StartError, match="loads"):
            parsed_loads(text)
    with pytest.raises(StartError, match="'triton': expected some of feedline, fastapi"):
        parsed_systems("feedline,triton")


def test_the_order_is_turned_and_nobody_is_left_out() -> None:
    assert turned(("a", "b", "c"), 0) == ["a", "b", "c"]
    assert turned(("a", "b", "c"), 4) == ["b", "c", "a"]


def test_a_response_is_whole_however_it_is_cut() -> None:
    plain = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
    head = b"HTTP/1.1 429 Too Many\r\ntransfer-encoding: chunked\r\nConnection: close\r\n\r\n"
    chunked = head + b"3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\n\r\n"
    for data, status, closes in ((plain, 200, False), (chunked, 429, True)):
        for cut in range(1, len(data)):
            response = Response()
            assert not response.feed(data[:cut])
            assert response.feed(data[cut:])
            assert (response.status, response.body, response.closes) == (status, b"hello", closes)
    with pytest.raises(ValueError, match=r"HTTP/1\.1"):
        Response().feed(b"PRI * HTTP/2.0\r\n\r\n")


def test_an_answer_is_one_with_items_and_rung() -> None:
    assert answer_of(ANSWER) == answer_of(b"[" + ANSWER + b"]")
    for wrong in (b"[]", b"{}", b"3"):
        with pytest.raises(ValueError, match="items and rung"):
            answer_of(wrong)


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


@asynccontextmanager
async def server(handle: Handle) -> AsyncIterator[int]:
    """A port of loopback on which every connection is given to `handle`, and closed afterwards."""

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(closing, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]


async def request_of(reader: asyncio.StreamReader) -> bytes:
    """The body of the next request."""
    head = await reader.readuntil(b"\r\n\r\n")
    return await reader.readexactly(int(head.lower().rpartition(b"content-length:")[2].split(b"\r\n")[0]))


def response(status: int, content: bytes) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


async def test_a_connection_is_used_again_and_codes_are_told() -> None:
    connections = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        while True:
            asked = await request_of(reader)
            writer.write(response(200, ANSWER) if asked == b"{}" else response(503, b"full"))

    async with server(handle) as port:
        ask = HttpAsk(port, [post("/rank", b"{}"), post("/rank", b"[]")], deadline_s=5)
        assert await ask(0) == Outcome(code=OK, rung=RANKED, size=len(ANSWER))
        assert await ask(1) == Outcome(code="HTTP 503", size=4)
        assert (await ask(0)).code == OK
        assert len(connections) == 1
        ask.close()


async def test_what_is_late_is_given_up_and_its_connection_with_it() -> None:
    ended = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        assert await reader.read() == b""
        ended.set()

    async with server(handle) as port:
        assert (await HttpAsk(port, [post("/rank", b"{}")], deadline_s=0.05)(0)).code == TIMED_OUT
        await ended.wait()
    assert (await HttpAsk(port, [post("/rank", b"{}")], deadline_s=5)(0)).code == REFUSED


async def test_a_connection_that_was_closed_while_idle_is_replaced() -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await request_of(reader)
        writer.write(response(200, ANSWER))

    async with server(handle) as port:
        ask = HttpAsk(port, [post("/rank", b"{}")], deadline_s=5)
        assert [(await ask(0)).code for _ in range(3)] == [OK] * 3
        ask.close()


async def test_clients_that_never_pause_are_counted_by_complete_answers() -> None:
    async def ask(index: int) -> Outcome:
        await asyncio.sleep(0)
        return Outcome(rung=RANKED if index % 2 else "POPULAR")

    assert await saturate(ask, 0.05, 10) > 0

    async def none(index: int) -> Outcome:
        await asyncio.sleep(0)
        return Outcome(code="HTTP 503", rung=RANKED)

    assert await saturate(none, 0.01, 10) == 0


async def test_the_door_lets_so_many_in_and_those_who_leave_make_room() -> None:
    go, inside = asyncio.Event(), []

    async def app(scope: Message, receive: Any, send: Any) -> None:
        inside.append(scope)
        await go.wait()
        await send({"type": "http.response.start", "status": 200})

    door, said = Door(app, most=1), []

    async def send(message: Message) -> None:
        said.append(message.get("status"))

    async def receive() -> Message:
        raise AssertionError("a body that is turned away is not read")

    first = asyncio.create_task(door({"type": "http"}, receive, send))
    await asyncio.sleep(0)
    await door({"type": "http"}, receive, send)
    assert said == [503, None]
    go.set()
    await first
    await door({"type": "http"}, receive, send)
    assert said == [503, None, 200, 200]
    assert len(inside) == 2


def test_a_server_reads_what_it_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Serving(Path("/snapshots"), 8000, 8, 16, 0.147, helped=True)
    for name, value in environment_of(told).items():
        monkeypatch.setenv(name, value)
    assert Serving.of_environment() == told
    monkeypatch.delenv("PEER_DOOR")
    with pytest.raises(KeyError, match="PEER_DOOR"):
        Serving.of_environment()


def test_rows_are_means_with_their_spread_and_sums_of_what_was_counted() -> None:
    def measured(qps: int, took_s: float, code: str) -> Measured:
        plan = Plan((Step(qps, 1.0),), poisson([Step(qps, 1.0)], 1).at[:4], poisson([Step(qps, 1.0)], 1).step[:4])
        samples = (*[Sample(0.0, took_s, Outcome(rung=RANKED))] * 3, Sample(0.0, 0.5, Outcome(code=code)))
        return Measured(plan, samples, (Boundary(0.0, 0.0, None), Boundary(1.0, 0.1, None)))

    repeats = [figures(measured(10, 0.1, "HTTP 503")), figures(measured(10, 0.2, "HTTP 504"))]
    about = {"machine": "m", "items": 5, "synthetic": True, "versions": {"ray": "1"}}
    plateau = {"goodput_qps": 10.0, "reached": True}
    (row,) = rows("ray", (2.0,), repeats, 9.0, Limits(4, 2), plateau, about)
    assert (row["system"], row["load_times_plateau"], row["offered_qps"]) == ("ray", 2.0, 4.0)
    assert (row["goodput_qps"], row["goodput_qps_least"], row["goodput_qps_most"]) == (1.5, 0.0, 3.0)
    assert (row["p99_ms"], row["non_ok"], row["non_ok_by_code"]) == (150.0, 2, {"HTTP 503": 1, "HTTP 504": 1})
    assert row["version"] == "1"
    assert table([row]).row_count == 1


def test_the_stages_answer_what_a_client_sends_and_unknown_items_are_passed_over(snapshots: Path) -> None:
    stages, shop = TwoStages(snapshots), of_snapshots(snapshots)
    questions = Requests(shop, MIX, seed=1).draw(20)
    asked = [Asked.model_validate_json(body(one.message, listed=False)) for one in questions]
    together = stages.answer(asked)
    assert [one["rung"] for one in together] == [RANKED] * 20
    assert all(len(one["items"]) == 20 and one["scores"] == sorted(one["scores"], reverse=True) for one in together)
    more = asked[0].model_copy(update={"items": ["nowhere", *asked[0].items], "types": [2, *asked[0].types]})
    assert stages.answer([more])[0]["items"] == together[0]["items"]


async def test_feedline_answers_as_the_stages_do(snapshots: Path) -> None:
    questions = Requests(of_snapshots(snapshots), MIX, seed=1).draw(10)
    asked = [Asked.model_validate_json(body(one.message, listed=False)) for one in questions]
    place = Place(snapshots, Path("nowhere"), None, 5.0)
    async with running(FEEDLINE, place, questions, batch=4, door=8, within_s=5.0) as one:
        served = [await one.ids(index) for index in range(10)]
        assert (await one.ask(0)).rung == RANKED
    assert served == [answer["items"] for answer in TwoStages(snapshots).answer(asked)]


async def test_without_the_virtual_environment_it_is_said_how_to_make_it(snapshots: Path, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"benchmarks/peers/install\.sh"):
        await peers(PeersOptions(snapshots, tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(
    not INSTALLED, reason="FEEDLINE_PEERS_VENVS names no folder that benchmarks/peers/install.sh filled"
)
@pytest.mark.parametrize("name", PEERS)
async def test_a_peer_answers_as_the_stages_do_and_leaves_nothing_behind(name: str, snapshots: Path) -> None:
    questions = Requests(of_snapshots(snapshots), MIX, seed=1).draw(5)
    asked = [Asked.model_validate_json(body(one.message, listed=False)) for one in questions]
    place = Place(snapshots, PROGRAMS, None, 10.0)
    async with running(name, place, questions, batch=4, door=8, within_s=10.0) as one:
        assert [await one.ids(index) for index in range(5)] == [
            each["items"] for each in TwoStages(snapshots).answer(asked)
        ]
        assert await one.ask(0) == Outcome(rung=RANKED, size=(await one.ask(0)).size)
        pid = one.pid
    assert left_behind(pid, b"PEER_RUN") == []
