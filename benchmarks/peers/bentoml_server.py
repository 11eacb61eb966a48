"""BentoML: adaptive batching in one worker.

    bentoml serve benchmarks.peers.bentoml_server:Feed

After https://docs.bentoml.com/en/latest/get-started/adaptive-batching.html (a batchable API takes and gives lists,
`max_batch_size`, `max_latency_ms`: what cannot be answered by then is turned away, 503) and
https://docs.bentoml.com/en/latest/reference/bentoml/configurations.html (`traffic.max_concurrency`: 429 above it,
`traffic.timeout`: 504).
"""

from __future__ import annotations

from typing import Any

import bentoml

from benchmarks.peers.serving import Serving
from benchmarks.peers.two_stages import Asked, TwoStages

serving = Serving.of_environment()


@bentoml.service(
    name="feed",
    workers=1,
    traffic={"max_concurrency": serving.door, "timeout": serving.within_s},
    logging={"access": {"enabled": False}},
)
class Feed:
    """Both stages, a batch at a time."""

    def __init__(self) -> None:
        self.stages = TwoStages(serving.snapshots)

    @bentoml.api(
        route="/rank", batchable=True, max_batch_size=serving.batch, max_latency_ms=int(serving.within_s * 1e3)
    )
    def rank(self, asked: list[Asked]) -> list[dict[str, Any]]:
        """An answer for each."""
        return self.stages.answer(asked)
