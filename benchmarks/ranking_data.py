"""Complete Journey and Online Retail as arrays, and their content vectors: what the ranking benchmarks measure on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from indexer.contract.features import PURCHASE
from indexer.learn.interactions import Interactions, interactions
from services.demo.dataset import prepare

SEED = 7
COMPLETE_JOURNEY = "complete-journey"


@dataclass(frozen=True, slots=True)
class Data:
    """Events, the items' texts, and the days at which the windows begin: ranker, validation, test."""

    log: Interactions
    texts: list[str]
    starts: tuple[float, float, float]

    @property
    def stop(self) -> float:
        """The day after the last session began."""
        return float(self.log.begun[-1]) + 1


def load(name: str) -> Data:
    """`name`: complete-journey, or the path of online_retail.parquet."""
    return complete_journey() if name == COMPLETE_JOURNEY else online_retail(Path(name))


def complete_journey() -> Data:
    """From its package, as the demo converts it."""
    with TemporaryDirectory() as folder:
        files = prepare(Path(folder))
        items, events = pq.read_table(files.catalogue), pq.read_table(files.events)
    items = items.sort_by("item_id")
    parts = [pc.fill_null(items[name], "") for name in ("title", "category", "brand", "description")]
    texts = [". ".join(filter(None, row)) for row in zip(*(part.to_pylist() for part in parts), strict=True)]
    log = _log(events, items["item_id"], "item_id", "user_id", "session_id", "occurred_at")
    return Data(log, texts, _days("2017-10-15", "2017-11-16", "2017-12-01"))


def online_retail(path: Path) -> Data:
    """From the UCI file: no cancellations, quantity and price above 0, known customers, codes of products."""
    table = sales(path)
    named = table.group_by("StockCode").aggregate([("Description", "max")]).sort_by("StockCode")
    log = _log(table, named["StockCode"], "StockCode", "CustomerID", "InvoiceNo", "InvoiceDate")
    return Data(log, named["Description_max"].to_pylist(), _days("2011-09-15", "2011-10-18", "2011-11-01"))


def sales(path: Path) -> pa.Table:
    """The rows of the UCI file that are sales of products to known customers."""
    table = pq.read_table(path)
    kept = pc.and_(pc.greater(table["Quantity"], 0), pc.greater(table["UnitPrice"], 0))
    kept = pc.and_(kept, pc.and_(pc.is_valid(table["CustomerID"]), pc.is_valid(table["Description"])))
    kept = pc.and_(kept, pc.invert(pc.starts_with(table["InvoiceNo"], "C")))
    return table.filter(pc.and_(kept, pc.match_substring_regex(table["StockCode"], r"^\d{5}")))


def encode(texts: list[str], model: str, target: Path) -> npt.NDArray[np.float16]:
    """Content vectors, each distinct text once; kept at `target`."""
    if not target.exists():
        from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - only when they are not there

        distinct, place = np.unique(np.array(texts), return_inverse=True)
        encoder = SentenceTransformer(model, device="cpu")
        vectors = encoder.encode(distinct.tolist(), normalize_embeddings=True, convert_to_numpy=True)
        np.save(target, np.asarray(vectors)[place].astype(np.float16))
    return np.asarray(np.load(target, allow_pickle=False), np.float16)


def _log(events: pa.Table, ids: pa.ChunkedArray, item: str, user: str, session: str, moment: str) -> Interactions:
    known = pa.array(ids.to_pylist())
    events = events.filter(pc.is_in(events[item], value_set=known))  # some products were sold that are not listed
    rows = pc.index_in(events[item], value_set=known).to_numpy().astype(np.int32)
    users, sessions = (events[name].combine_chunks().dictionary_encode().indices.to_numpy() for name in (user, session))
    moments = events[moment].cast(pa.timestamp("us")).to_numpy()
    types = np.full(len(rows), PURCHASE, np.uint8)
    return interactions(
        rows, types, users.astype(np.int64), sessions.astype(np.int64), moments, n_items=len(ids), seed=SEED
    )


def _days(*dates: str) -> tuple[float, float, float]:
    ranker, validation, test = (float(np.datetime64(date, "D").astype(np.int64)) for date in dates)
    return ranker, validation, test
