"""What the session tower is given: an ONNX model's inputs, made in one way for training and serving.

item_vectors float32 [batch, context, d], types int64 [batch, context], mask bool [batch, context]; newest first. In
mode `shared` the context is that of the session alone; in mode `personal` the user's latest items follow it.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from indexer.contract.features import Context
from indexer.contract.items import Rows

Mode = Literal["shared", "personal"]
BEFORE = 6
"""The type of what the user did in earlier sessions, beside the event types 0..5 of feed.proto."""
TYPES = 7
INPUTS = ("item_vectors", "types", "mask")
OUTPUT = "session_vectors"


def tower_context(context: Context, history: Rows, places: int) -> Context:
    """The context followed by the items of `history` (int32, newest first) that it does not hold; at most `places`."""
    if not len(history):
        return context if len(context) <= places else Context(context.rows[:places], context.types[:places])
    older = history[~np.isin(history, context.rows)][: max(0, places - len(context))]
    rows = np.concatenate([context.rows, older])[:places]
    types = np.concatenate([context.types, np.full(len(older), BEFORE, np.uint8)])[:places]
    return Context(rows.astype(np.int32), types.astype(np.uint8))


def tower_inputs(vectors: npt.NDArray[np.float16], contexts: list[Context]) -> dict[str, npt.NDArray[np.generic]]:
    """The session tower's inputs for a batch, padded to the longest context; at least one place.

    `vectors` float16 [n, d], one row an item, may be memory-mapped.
    """
    places = max(1, *map(len, contexts)) if contexts else 1
    rows = np.zeros((len(contexts), places), np.int64)
    types = np.zeros((len(contexts), places), np.int64)
    mask = np.zeros((len(contexts), places), np.bool_)
    for at, context in enumerate(contexts):
        rows[at, : len(context)] = context.rows
        types[at, : len(context)] = context.types
        mask[at, : len(context)] = True
    return {"item_vectors": vectors[rows].astype(np.float32), "types": types, "mask": mask}
