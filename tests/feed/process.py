"""The service as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from tests.feed.conftest import Client


@asynccontextmanager
async def serving(
    *python: str, folder: Path, snapshots: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Client, str]]:
    """`python ... serve` as a process of its own, ready: the process, a client, the console's address."""
    settings = folder / "feedline.toml"
    settings.write_text(
        f"[serve]\nport = 0\nlame_duck_s = 0.3\n[console]\nport = 0\n[snapshots]\nfolder = '{snapshots}'\n"
        f"[state]\nfolder = '{folder / 'valkey'}'\n[log]\nformat = 'json'\n[scoring]\nmax_queue_delay_ms = 50\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *python,
        "serve",
        "--config",
        str(settings),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    try:
        grpc_port, console_port = await ready(process)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            yield process, Client(channel), f"http://127.0.0.1:{console_port}"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def ready(process: asyncio.subprocess.Process) -> tuple[int, int]:
    """The ports, from the log line that says "ready"."""
    assert process.stderr is not None
    async with asyncio.timeout(60):
        async for line in process.stderr:
            if line.startswith(b"{") and (entry := json.loads(line))["event"] == "ready":
                return entry["grpc_port"], entry["console_port"]
    raise AssertionError("the service ended before it was ready")
