"""The one console of all workers: health of all, metrics of all, and everything else answered by one of them."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from services.console.faults import fault, install_fault_handlers
from services.console.guard import BodyLimit, SafeHeaders
from services.feed.validate import MAX_MESSAGE_BYTES
from services.workers.ask import Answer, NotAsked, ask

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_CONNECTION = ("connection", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
_OF_ONE_HOP = frozenset({*_CONNECTION, "content-length", "date", "expect", "server"})
_FAILED = (NotAsked, OSError, http.client.HTTPException, ValueError)


def create_console(consoles: Sequence[Path], registry: CollectorRegistry) -> FastAPI:
    """`consoles`: the workers' Unix sockets. `registry`: the parent's own metrics."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_middleware(BodyLimit, limit=MAX_MESSAGE_BYTES)
    app.add_middleware(SafeHeaders)
    install_fault_handlers(app)
    turns = itertools.count()

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> str:
        return "alive\n"

    @app.get("/readyz")
    async def readyz() -> JSONResponse:
        each = [_readiness(answer) for answer in await _from_all(consoles, "/readyz")]
        return JSONResponse(_of_all(each), 200 if all(one["ready"] for one in each) else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        texts = [answer.body.decode() if answer else "" for answer in await _from_all(consoles, "/metrics")]
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        everything = CollectorRegistry()
        everything.register(_Families(merged(registry.collect(), texts)))
        return Response(encode(everything), media_type=content_type)

    @app.api_route("/{path:path}", methods=_METHODS)
    async def passed_on(request: Request) -> Any:
        """By the workers in turn; by the next where one does not listen."""
        headers = {name: value for name, value in request.headers.items() if name not in _OF_ONE_HOP}
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        body = await request.body()
        first = next(turns)
        for at in range(len(consoles)):
            worker = consoles[(first + at) % len(consoles)]
            try:
                got = await asyncio.to_thread(ask, worker, request.method, target, headers, body)
            except NotAsked:
                continue
            except (OSError, http.client.HTTPException):
                break
            kept = {name: value for name, value in got.headers if name.lower() not in _OF_ONE_HOP}
            return Response(got.body, got.status, kept)
        return fault(503, "", "no worker answers")

    return app


async def _from_all(consoles: Sequence[Path], target: str) -> list[Answer | None]:
    async def from_one(console: Path) -> Answer | None:
        try:
            return await asyncio.to_thread(ask, console, "GET", target, timeout_s=2.0)
        except _FAILED:
            return None

    return await asyncio.gather(*(from_one(console) for console in consoles))


def _readiness(answer: Answer | None) -> dict[str, Any]:
    nothing = {"ready": False, "degraded": True, "snapshot_id": "", "reasons": ["worker_not_running"], "refused": ""}
    return nothing if answer is None else json.loads(answer.body)


def _of_all(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Ready when all are; what one lacks, all lack; of snapshots, the oldest that one serves."""
    return {
        "ready": all(one["ready"] for one in each),
        "degraded": any(one["degraded"] for one in each),
        "snapshot_id": min(one["snapshot_id"] for one in each),
        "reasons": list(dict.fromkeys(reason for one in each for reason in one["reasons"])),
        "refused": next((one["refused"] for one in each if one["refused"]), ""),
        "workers": list(each),
    }


def merged(own: Iterable[Metric], texts: Sequence[str]) -> list[Metric]:
    """The parent's families, and those of the workers' texts with a label `worker`: its number.

    Not added up: a worker that is replaced begins at 0, and only a series of its own tells that from a loss.
    """
    families: dict[str, Metric] = {}
    for family in own:
        families[family.name] = family
    for number, text in enumerate(texts):
        for family in text_string_to_metric_families(text):
            to = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            to.samples += [
                sample._replace(labels={**sample.labels, "worker": str(number)}) for sample in family.samples
            ]
    return list(families.values())


class _Families:
    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families
