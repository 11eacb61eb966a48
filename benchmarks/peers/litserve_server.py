"""LitServe: an API process and a worker process that batches.

    python -m benchmarks.peers.litserve_server

After https://lightning.ai/docs/litserve/features/batching and https://lightning.ai/docs/litserve/api-reference/litapi:
`max_batch_size`, `batch_timeout`, `batch` and `unbatch`; `timeout` turns away what waited too long (504);
`fast_queue=True`, the transport for many requests. A `batch_timeout` of 0 makes the worker poll its queue without a
pause, which on one core costs more than waiting. LitServe's queue has no bound; where it is helped, the door is one of
its `middlewares`.
"""

from typing import Any

import litserve as ls

from benchmarks.peers.door import Door
from benchmarks.peers.serving import Serving
from benchmarks.peers.two_stages import Asked, TwoStages

BATCH_TIMEOUT_S = 0.002


class FeedAPI(ls.LitAPI):
    """Both stages, a batch at a time."""

    def setup(self, device: str) -> None:
        """Loads the snapshot, in the worker."""
        self.stages = TwoStages(Serving.of_environment().snapshots)

    def decode_request(self, request: Asked) -> Asked:
        """What was sent, checked by the API process."""
        return request

    def batch(self, inputs: list[Asked]) -> list[Asked]:
        """Questions are scored as a list."""
        return inputs

    def predict(self, x: list[Asked]) -> list[dict[str, Any]]:
        """Scores the batch."""
        return self.stages.answer(x)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """An answer for each."""
        return output

    def encode_response(self, output: dict[str, Any]) -> dict[str, Any]:
        """It is JSON already."""
        return output


if __name__ == "__main__":
    serving = Serving.of_environment()
    server = ls.LitServer(
        FeedAPI(max_batch_size=serving.batch, batch_timeout=BATCH_TIMEOUT_S, api_path="/rank"),
        accelerator="cpu",
        workers_per_device=1,
        timeout=serving.within_s,
        fast_queue=True,
        middlewares=[(Door, {"most": serving.door})] if serving.helped else [],
    )
    server.run(host="127.0.0.1", port=serving.port, generate_client_file=False, log_level="warning", access_log=False)
