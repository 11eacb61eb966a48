"""Every error of the console as `{"error": {"field": ..., "message": ...}}`."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from services.errors import InvalidArgument, StateUnavailable


class Unauthorised(Exception):
    """The write token is missing or wrong."""


def install_fault_handlers(app: FastAPI) -> None:
    """Maps the exceptions of the service and of the framework to status and body."""

    @app.exception_handler(InvalidArgument)
    async def invalid(_: Request, error: InvalidArgument) -> JSONResponse:
        return fault(400, error.field, error.message)

    @app.exception_handler(RequestValidationError)
    async def misshapen(_: Request, error: RequestValidationError) -> JSONResponse:
        return fault(400, *describe(error))

    @app.exception_handler(StateUnavailable)
    async def unavailable(_: Request, error: StateUnavailable) -> JSONResponse:
        return fault(503, "", error.reason)

    @app.exception_handler(Unauthorised)
    async def unauthorised(_: Request, error: Unauthorised) -> JSONResponse:
        return fault(401, "Authorization", str(error), {"WWW-Authenticate": "Bearer"})

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        field = "body" if error.status_code == 413 else ""
        return fault(error.status_code, field, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def broken(_: Request, error: Exception) -> JSONResponse:
        # The server logs the exception after this; a client learns nothing of its inside.
        return fault(500, "", "the console failed to answer")


def fault(status: int, field: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The one shape of an error."""
    return JSONResponse({"error": {"field": field, "message": message}}, status, headers)


def describe(error: RequestValidationError) -> tuple[str, str]:
    """Path and message of the first thing that has the wrong shape."""
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return "body", f"is not JSON: {first['ctx']['error']} at character {first['loc'][-1]}"
    place, *path = first["loc"]
    if place == "body" and not path:
        return "body", "expected a JSON object, sent as Content-Type: application/json"
    message = {"missing": "is required", "extra_forbidden": "is not a field of this request"}.get(first["type"])
    return spell(path), message or str(first["msg"]).removeprefix("Value error, ")


def spell(path: Sequence[str | int]) -> str:
    """("events", 3, "item_id") as "events[3].item_id"."""
    spelled = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return spelled.removeprefix(".")
