"""The gRPC port, with health and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.errors import StartError
from services.feed.servicer import SERVICE, FeedServicer, grpc_handlers
from services.settings import Serve

MAX_METADATA_BYTES = 8 << 10
"""Of a call's headers together; what is longer is refused by gRPC."""


_Request = TypeVar("_Request")
_Response = TypeVar("_Response")


class _LastCall(grpc.aio.ServerInterceptor):
    """When the last call of the feed service came, on the event loop's clock."""

    def __init__(self) -> None:
        self.at = 0.0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[_Request, _Response] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[_Request, _Response] | None:
        """Notes the time."""
        if handler_call_details.method.startswith(f"/{SERVICE}/"):
            self.at = asyncio.get_running_loop().time()
        return await continuation(handler_call_details)


class GrpcServer:
    """The gRPC port. Not serving, by its health service, until `set_ready`."""

    def __init__(self, checks: health.aio.HealthServicer, last_call: _LastCall, port: int) -> None:
        self._health = checks
        self._last_call = last_call
        self.port = port
        self.ready = False

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: Serve, servicer: FeedServicer, *, shares_port: bool = False
    ) -> AsyncIterator[GrpcServer]:
        """Listens while entered; when left, refuses new calls and waits `drain_s` for those that have begun.

        `shares_port`: with other processes. Otherwise a port that is taken must be an error, not half of the traffic.
        """
        last_call = _LastCall()
        options = (
            ("grpc.so_reuseport", int(shares_port)),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
        )
        server = grpc.aio.server(interceptors=[last_call], options=options)
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        server.add_generic_rpc_handlers((grpc_handlers(servicer),))
        if settings.reflection:
            reflection.enable_server_reflection((SERVICE, reflection.SERVICE_NAME, "grpc.health.v1.Health"), server)
        address = f"[{settings.host}]:{settings.port}" if ":" in settings.host else f"{settings.host}:{settings.port}"
        credentials = _credentials(settings)
        try:
            port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
        except RuntimeError as error:
            keys = "serve.port, or the PEM files of serve.tls_*" if credentials else "serve.port"
            raise StartError(f"{keys}: {address} cannot be listened on: {error}") from error
        running = cls(checks, last_call, port)
        await running.set_ready(False)
        await server.start()
        try:
            yield running
        finally:
            await server.stop(settings.drain_s)

    async def set_ready(self, ready: bool) -> None:
        """Tells the health service, for the whole server and for the feed service."""
        self.ready = ready
        status = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)

    async def until_quiet(self, quiet_s: float, at_most_s: float) -> None:
        """Returns when no feed call has come for `quiet_s` seconds, at the latest after `at_most_s`.

        grpc's own stop cancels calls that arrive while it runs (grpc/grpc#37239): it has to be called when none do.
        """
        loop = asyncio.get_running_loop()
        begun = self._last_call.at = loop.time()
        while (left := min(self._last_call.at + quiet_s, begun + at_most_s) - loop.time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)


def _credentials(settings: Serve) -> grpc.ServerCredentials | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    pair = (_read("serve.tls_key", settings.tls_key), _read("serve.tls_certificate", settings.tls_certificate))
    authority = _read("serve.tls_client_ca", settings.tls_client_ca) if settings.tls_client_ca else None
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


def _read(key: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartError(f"{key}: {path}: {error.strerror or error}") from error
