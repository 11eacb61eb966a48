"""FastAPI and uvicorn, plain: one question at a time on a thread beside the event loop, first come first served.

    uvicorn benchmarks.peers.fastapi_server:app

After https://fastapi.tiangolo.com/advanced/events/ (the model is loaded in `lifespan`), https://fastapi.tiangolo.com/async/
and https://www.starlette.io/threadpool/ (blocking work goes to the pool; as many threads as the service has cores),
https://fastapi.tiangolo.com/tutorial/response-model/. FastAPI has no batching. Its bounded queue is uvicorn's
`--limit-concurrency`, which counts idle connections, too, and it has no time-out; where it is helped, the door is a
middleware and the time-out asyncio's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, HTTPException, Request

from benchmarks.peers.door import Door
from benchmarks.peers.serving import Serving
from benchmarks.peers.two_stages import Asked, Ranked, TwoStages

serving = Serving.of_environment()


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Loads the snapshot before the first request."""
    app.state.stages = await to_thread.run_sync(TwoStages, serving.snapshots)
    app.state.one_at_a_time = CapacityLimiter(1)
    yield


app = FastAPI(lifespan=lifespan)
if serving.helped:
    app.add_middleware(Door, most=serving.door)


@app.post("/rank")
async def rank(asked: Asked, request: Request) -> Ranked:
    """The ranking; 504 when its turn has not come in time."""
    state = request.app.state
    try:
        async with asyncio.timeout(serving.within_s if serving.helped else None):
            found: list[dict[str, Any]] = await to_thread.run_sync(
                state.stages.answer, [asked], limiter=state.one_at_a_time
            )
    except TimeoutError:
        raise HTTPException(504, "its turn did not come in time") from None
    return Ranked(**found[0])
