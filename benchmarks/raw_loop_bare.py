"""The bare loop of `raw_loop.py`: tensors, ONNX Runtime and FAISS, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from indexer.contract.blend import ANN, Blend, BlendSpec, ranked_list
from indexer.contract.candidates import Shopper, ranker_tensors
from indexer.contract.features import Context, Floats, query_vector
from indexer.contract.history import EMPTY
from indexer.contract.manifest import RANKER, SESSION_TOWER
from indexer.contract.sources import CANDIDATES, first
from indexer.contract.towers import tower_inputs
from services.feed.loaded import Loaded
from services.feed.onnx_model import open_model
from services.feed.question import Question

SPEC = BlendSpec()


class Raw:
    """The bare loop over a snapshot that has a retriever and a ranker."""

    def __init__(self, loaded: Loaded, folder: Path) -> None:
        assert loaded.shelf is not None
        assert loaded.retriever is not None
        self.spec, self.shelf, self.retriever = loaded.manifest, loaded.shelf, loaded.retriever
        self.mask = loaded.eligible("", "")
        self.ranker = open_model(folder / RANKER, 1)
        self.tower: onnxruntime.InferenceSession | None = None
        if self.spec.query.kind == "session_tower":
            self.tower = open_model(folder / SESSION_TOWER, 1)

    def vectors(self, contexts: list[Context]) -> Floats:
        """Session vectors float32 [B, d]."""
        if self.tower is None:
            return np.stack([query_vector(self.shelf.vectors, context, self.spec.query) for context in contexts])
        return np.asarray(self.tower.run(None, tower_inputs(self.shelf.vectors, contexts))[0], np.float32)

    def tensors(self, asked: Sequence[Question]) -> dict[str, Any]:
        """The ranker's inputs for the first 50 of what FAISS finds."""
        vectors = self.vectors([question.context for question in asked])
        found = self.retriever.search(vectors, self.mask, CANDIDATES)
        heads: list[Blend] = [first(ranked_list(ANN, rows, SPEC), self.spec.ranker.depth) for rows, _ in found]
        shoppers = [
            Shopper(question.context, EMPTY, 0.0, vector) for question, vector in zip(asked, vectors, strict=True)
        ]
        made = ranker_tensors(self.shelf, shoppers, heads, self.spec.ranker.places)
        return {tensor.name: made[tensor.name] for tensor in self.spec.ranker.inputs}

    def scores(self, tensors: dict[str, Any]) -> Floats:
        """float32 [B, 50]."""
        return np.asarray(self.ranker.run([self.spec.ranker.output], tensors)[0], np.float32)


def raw_cost(raw: Raw, asked: Sequence[Question], sizes: Sequence[int]) -> float:
    """CPU seconds of one answer, over batches of these sizes."""
    at, answers = 0, 0
    start = time.process_time()
    for size in sizes:
        batch = [asked[(at + place) % len(asked)] for place in range(size)]
        raw.scores(raw.tensors(batch))
        at, answers = at + size, answers + size
    return (time.process_time() - start) / answers


def rerank_times(raw: Raw, loaded: Loaded, asked: Sequence[Question]) -> dict[str, Any]:
    """Milliseconds of reranking 50 for one question at a time, and ratios of the medians to the model's run alone."""
    assert loaded.ranker is not None
    ranker = loaded.ranker
    took: dict[str, list[float]] = {"run": [], "ranker": [], "with_tensors": []}

    def timed(name: str, call: Callable[[], object]) -> None:
        start = time.perf_counter()
        call()
        took[name].append((time.perf_counter() - start) * 1e3)

    for question in asked:
        (vector,) = raw.vectors([question.context])
        ((rows, _),) = raw.retriever.search(vector[None], raw.mask, CANDIDATES)
        head, shopper = first(ranked_list(ANN, rows, SPEC), 50), Shopper(question.context, EMPTY, 0.0, vector)

        def make(head: Blend = head, shopper: Shopper = shopper) -> dict[str, Any]:
            return dict(ranker_tensors(raw.shelf, [shopper], [head], raw.spec.ranker.places))

        made = make()
        given = {tensor.name: made[tensor.name] for tensor in raw.spec.ranker.inputs}
        calls: list[tuple[str, Callable[[], object]]] = [
            ("run", lambda given=given: raw.scores(given)),  # type: ignore[misc]
            ("ranker", lambda made=made, head=head: ranker.score(made, [len(head)])),  # type: ignore[misc]
            ("with_tensors", lambda make=make, head=head: ranker.score(make(), [len(head)])),  # type: ignore[misc]
        ]
        turn = len(took["run"]) % len(calls)
        for kind, call in calls[turn:] + calls[:turn]:
            timed(kind, call)
    figures: dict[str, Any] = {}
    for name, each in took.items():
        p50, p99 = np.percentile(each, [50, 99])
        figures[name] = {"p50_ms": round(float(p50), 3), "p99_ms": round(float(p99), 3)}
        figures[name]["times_run"] = round(float(p50) / figures["run"]["p50_ms"], 2)
    return figures
