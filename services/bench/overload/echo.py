"""A bare grpc.aio server that answers every call with the same bytes: what an answer costs that is no work at all.

Run as a program it reads the answer from standard input, prints its port and serves until SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import uvloop

from services.bench.load.service import pinned
from services.demo.children import end

_HOST = "127.0.0.1"


@asynccontextmanager
async def echoing(answer: bytes, *, cpu: int | None) -> AsyncIterator[tuple[str, int]]:
    """host:port and process id of a server in a process of its own; `cpu`: the only one it may run on."""
    with pinned(cpu):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.bench.overload.echo", stdin=PIPE, stdout=PIPE, start_new_session=True
        )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(answer)
        process.stdin.write_eof()
        yield f"{_HOST}:{int(await process.stdout.readline())}", process.pid
    finally:
        await end(process)


async def serve(answer: bytes) -> None:
    """Serves on a free port of loopback until SIGTERM."""

    async def answered(_data: bytes, _context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
        return answer

    class Everything(grpc.GenericRpcHandler):
        def service(self, _details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
            return handler

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answered)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Everything(),))
    port = server.add_insecure_port(f"{_HOST}:0")
    await server.start()
    print(port, flush=True)
    await stop.wait()
    await server.stop(None)


if __name__ == "__main__":
    uvloop.run(serve(sys.stdin.buffer.read()))
