"""The console's FastAPI application: what is mounted where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates

from services.console.api import api
from services.console.faults import install_fault_handlers
from services.console.guard import BodyLimit, SafeHeaders
from services.console.health import Readiness
from services.console.schema import ReadinessAnswer
from services.feed.live import Live
from services.feed.servicer import FeedServicer
from services.feed.validate import MAX_MESSAGE_BYTES

_HERE = Path(__file__).parent
_ABOUT = """\
The feed service over HTTP: the same line and the same validation as `feedline.v1.FeedService` over gRPC.

Names are those of feed.proto in snake_case; enum values are one lower-case word ("click", "ranked"), in and out.
A field that is absent has its default; null is not a value. Every error is `{"error": {"field", "message"}}`.
"""


def create_console(
    *,
    servicer: FeedServicer,
    live: Live,
    readiness: Callable[[], Readiness],
    registry: CollectorRegistry,
    write_token: str,
) -> FastAPI:
    """REST, health, metrics and the page.

    FastAPI's own /docs and /redoc stay off: they load their scripts from a public CDN, which the content security
    policy forbids and a closed network does not reach. /openapi.json is there for any viewer.
    """
    app = FastAPI(
        title="Feedline", version="1", description=_ABOUT, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.add_middleware(BodyLimit, limit=MAX_MESSAGE_BYTES)
    app.add_middleware(SafeHeaders)
    install_fault_handlers(app)
    app.include_router(api(servicer, live, write_token))
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    templates = Jinja2Templates(directory=_HERE / "templates")

    @app.get("/", include_in_schema=False)
    def page(request: Request) -> Response:
        loaded = live.current()
        regions = sorted({*loaded.items.regions, *loaded.popular.regions}) if loaded else []
        return templates.TemplateResponse(
            request,
            "page.html",
            {
                "categories": [name for name in loaded.items.categories if name] if loaded else [],
                "regions": regions,
                "needs_token": bool(write_token),
            },
        )

    @app.get("/healthz", response_class=PlainTextResponse, tags=["operation"], summary="The process is alive")
    async def healthz() -> str:
        return "alive\n"

    @app.get(
        "/readyz",
        response_model=ReadinessAnswer,
        responses={503: {"model": ReadinessAnswer, "description": "Not yet, or not any more."}},
        tags=["operation"],
        summary="Whether to send traffic",
    )
    async def readyz() -> JSONResponse:
        now = readiness()
        return JSONResponse(asdict(now), 200 if now.ready else 503)

    @app.get("/metrics", response_class=PlainTextResponse, tags=["operation"], summary="For Prometheus")
    def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), media_type=content_type)

    return app
