"""SASRec by RecTools, in an environment of its own (RecTools 0.19 wants numpy below 2): called by sasrec.py.

    python sasrec_model.py QUESTIONS.npz RANKED.npz '{"epochs": 10, ...}'

QUESTIONS: the training sequences (`user`, `item`, `day`, one row an event, in order of time) and those of the questions
(`asked`, the number of the question; `asked_item`, `asked_day`). RANKED: `rows` int32 [Q, k], -1 where nothing stands.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import numpy.typing as npt
import pandas as pd
from pytorch_lightning import seed_everything
from rectools import Columns
from rectools.dataset import Dataset
from rectools.models import SASRecModel


def dataset(users: npt.NDArray[np.int64], items: npt.NDArray[np.int32], days: npt.NDArray[np.float64]) -> Dataset:
    """Events as RecTools wants them."""
    moments = pd.to_datetime((days * 86_400e9).astype(np.int64))
    frame = pd.DataFrame(
        {Columns.User: users, Columns.Item: items, Columns.Weight: np.ones(len(items)), Columns.Datetime: moments}
    )
    return Dataset.construct(frame)


def main() -> None:
    """Trains, ranks, writes; the seconds of both go to standard output as JSON."""
    source, target, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    seed_everything(options["seed"], workers=True)
    given = np.load(source)
    begun = time.monotonic()
    model = SASRecModel(
        n_factors=options["factors"],
        n_blocks=options["blocks"],
        n_heads=options["heads"],
        session_max_len=options["length"],
        epochs=options["epochs"],
        batch_size=options["batch"],
        lr=options["rate"],
        dropout_rate=options["dropout"],
        loss=options["loss"],
        n_negatives=options["negatives"],
        recommend_torch_device="cpu",
        deterministic=True,
    )
    model.fit(dataset(given["user"], given["item"], given["day"]))
    trained = time.monotonic()
    asked = dataset(given["asked"], given["asked_item"], given["asked_day"])
    found = model.recommend(
        users=np.unique(given["asked"]),
        dataset=asked,
        k=options["depth"],
        filter_viewed=False,
        on_unsupported_targets="warn",
    )
    rows = np.full((options["questions"], options["depth"]), -1, np.int32)
    rows[found[Columns.User].to_numpy(), found[Columns.Rank].to_numpy() - 1] = found[Columns.Item].to_numpy()
    np.savez(target, rows=rows)
    print(json.dumps({"train": trained - begun, "rank": time.monotonic() - trained}))


if __name__ == "__main__":
    main()
