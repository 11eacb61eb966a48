"""Ray Serve: proxy, controller and one replica that batches.

    python -m benchmarks.peers.ray_server

After https://docs.ray.io/en/latest/serve/advanced-guides/dyn-req-batch.html (`@serve.batch`),
https://docs.ray.io/en/latest/serve/advanced-guides/asyncio-best-practices.html (a batch that computes is handed to a
thread, so that the replica's loop goes on taking requests), https://docs.ray.io/en/latest/serve/advanced-guides/performance.html
(`request_timeout_s`; the throughput flags stand in `systems.py`) and
https://docs.ray.io/en/latest/serve/production-guide/best-practices.html (`max_queued_requests`: 503 above it).
"""

from __future__ import annotations

import asyncio
import signal
import threading
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from benchmarks.peers.serving import Serving
from benchmarks.peers.two_stages import Asked, TwoStages

BATCH_WAIT_S = 0.002
OBJECT_STORE_BYTES = 128 << 20
serving = Serving.of_environment()


@serve.deployment(
    num_replicas=1,
    ray_actor_options={"num_cpus": 1},
    max_ongoing_requests=min(serving.door, 2 * serving.batch),  # a batch that is computed and one that gathers
    max_queued_requests=max(1, serving.door - 2 * serving.batch),
)
class Feed:
    """Both stages, a batch at a time."""

    def __init__(self) -> None:
        self.stages = TwoStages(serving.snapshots)

    @serve.batch(max_batch_size=serving.batch, batch_wait_timeout_s=BATCH_WAIT_S)
    async def rank(self, asked: list[Asked]) -> list[dict[str, Any]]:
        """An answer for each."""
        return await asyncio.to_thread(self.stages.answer, asked)

    async def __call__(self, request: Request) -> dict[str, Any]:
        """One question."""
        found: dict[str, Any] = await self.rank(Asked.model_validate_json(await request.body()))
        return found


if __name__ == "__main__":
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=OBJECT_STORE_BYTES)
    serve.start(
        http_options={"host": "127.0.0.1", "port": serving.port, "request_timeout_s": serving.within_s},
        logging_config={"enable_access_log": False},
    )
    serve.run(Feed.bind(), route_prefix="/rank")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    stop.wait()
    serve.shutdown()
    ray.shutdown()
