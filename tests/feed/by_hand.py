"""What the service should find: by the code that models are learned with and by onnxruntime, without the service."""

from __future__ import annotations

import numpy as np
import onnxruntime

from indexer.contract.blend import Blend
from indexer.contract.candidates import Shopper, ranker_tensors
from indexer.contract.features import Context, Floats, query_vector
from indexer.contract.items import Rows
from indexer.contract.sources import CANDIDATES, Shared, first, neighbours_of, personal, share
from indexer.contract.towers import OUTPUT, Mode, tower_context, tower_inputs
from services.feed.loaded import Loaded
from services.feed.question import Question
from services.feed.work import Person
from tests.snapshots import WEIGHTS, linear_ranker, session_tower


class ByHand:
    """Candidates and scores of questions to a snapshot of `tests.snapshots`."""

    def __init__(self, loaded: Loaded) -> None:
        assert loaded.shelf is not None
        self.loaded, self.shelf = loaded, loaded.shelf
        self.ranker = onnxruntime.InferenceSession(linear_ranker(WEIGHTS))
        self.tower: onnxruntime.InferenceSession | None = None
        if loaded.manifest.query.kind == "session_tower":
            model = session_tower(loaded.manifest.dimension, int(loaded.id[-8:], 16))
            self.tower = onnxruntime.InferenceSession(model)

    def vector(self, context: Context, history: Rows) -> Floats:
        """The session vector."""
        query = self.loaded.manifest.query
        attended = tower_context(context, history, query.places)
        if self.tower is None:
            return query_vector(self.shelf.vectors, attended, query)
        (found,) = self.tower.run([OUTPUT], tower_inputs(self.shelf.vectors, [attended]))
        return np.asarray(found[0], np.float32)

    def shared(self, asked: Question, history: Rows, mode: Mode) -> Shared:
        """By exact search; with a history where it enters the vector."""
        vector = self.vector(asked.context, history)
        allowed = self.loaded.eligible(asked.category, asked.region)
        order = np.argsort(-(self.shelf.vectors.astype(np.float32) @ vector), kind="stable").astype(np.int32)
        nearest = order[allowed[order] & ~np.isin(order, asked.context.rows)] if vector.any() else order[:0]
        near = neighbours_of(self.shelf, asked.context.rows, allowed)
        spec = getattr(self.loaded.manifest.sources, mode)
        return share(nearest[:CANDIDATES], near, asked.context.rows, vector, spec)

    def scores(self, asked: Question, who: Person, mode: Mode) -> tuple[Blend, Floats]:
        """The candidates of one person, and the ranker's scores float32 [50 at most] of the first."""
        shared = self.shared(asked, who.history.rows[: None if mode == "personal" else 0], mode)
        allowed = self.loaded.eligible(asked.category, asked.region)
        spec = getattr(self.loaded.manifest.sources, mode)
        found = personal(shared, self.shelf, asked.context.rows, who.history, who.day, spec, allowed)
        shopper = Shopper(asked.context, who.history, who.day, shared.vector)
        tensors = ranker_tensors(self.shelf, [shopper], [first(found, 50)], 50)
        (scores,) = self.ranker.run(None, {"features": tensors["features"]})
        return found, np.asarray(scores[0], np.float32)
