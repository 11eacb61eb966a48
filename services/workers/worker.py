"""A worker: the whole service of one process, started anew by the parent (`python -m services.workers.worker`)."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.workers.orders import Orders

READY = "ready"
"""The line on standard output with which a worker says that it listens."""


def main() -> None:
    """Serves as ordered until SIGTERM, or until the parent is gone; then drains."""
    # A process that was forked off one with FAISS in it hangs in its first search (facebookresearch/faiss#5206).
    assert not {"faiss", "onnxruntime"} & sys.modules.keys(), "a worker begins as a process of its own"
    import uvloop  # noqa: PLC0415 - after the assertion, as all that follows

    from services import logs  # noqa: PLC0415
    from services.errors import StartError  # noqa: PLC0415
    from services.workers.orders import Orders  # noqa: PLC0415

    orders = Orders.model_validate_json(sys.stdin.readline())
    logs.configure(orders.settings.log)
    try:
        uvloop.run(_serve(orders))
    except StartError as error:
        sys.exit(f"feedline: {error}")


async def _serve(orders: Orders) -> None:
    from services.feed.app import open_app  # noqa: PLC0415
    from services.feed.member import Member  # noqa: PLC0415

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), stop.set)  # nothing more is ever sent: it is the end
    async with open_app(orders.settings, member=Member(orders.console, orders.lock)):
        print(READY, flush=True)
        await stop.wait()


if __name__ == "__main__":
    main()
