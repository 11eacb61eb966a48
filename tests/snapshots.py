"""Small snapshots straight from the contract, without the nightly job: random vectors, FAISS, a linear ranker."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import faiss
import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper

from indexer.contract import items as contract_items
from indexer.contract import popular as contract_popular
from indexer.contract.features import FEATURES, Context, query_vector
from indexer.contract.manifest import (
    ID_INDEX,
    INDEX,
    ITEMS,
    POPULAR,
    RANKER,
    VECTORS,
    GoldenQuery,
    IndexSpec,
    Manifest,
    QuerySpec,
    RankerSpec,
    TensorSpec,
)
from indexer.contract.publish import SnapshotWriter, new_id, publish

CATEGORIES = ("tea", "coffee", "cups")
START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Shop:
    """A catalogue of `count` items "i0", "i1", ... in three categories; `hidden` rows are unavailable.

    Item i is the (i+1)-th most popular. Rows in `regional` belong to region "north" only; the rest are everywhere.
    """

    count: int = 1000
    dimension: int = 16
    seed: int = 7
    hidden: frozenset[int] = frozenset()
    regional: frozenset[int] = frozenset()
    titles: dict[int, str] = field(default_factory=dict)


def publish_shop(root: Path, shop: Shop, *, age: int = 0, parent: str | None = None) -> str:
    """Writes and publishes a snapshot of the shop; its id. `age`: how many days after START it was built."""
    now = START + timedelta(days=age)
    snapshot_id = new_id(now, f"{shop.seed:08x}")
    rng = np.random.default_rng(shop.seed)
    vectors = rng.standard_normal((shop.count, shop.dimension)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    half = vectors.astype(np.float16)
    root.mkdir(parents=True, exist_ok=True)
    with SnapshotWriter(root, snapshot_id) as writer:
        ids = [f"i{row}" for row in range(shop.count)]
        pq.write_table(_items(shop, ids), writer.path(ITEMS))
        np.save(writer.path(ID_INDEX), contract_items.build_id_index(ids, shop.count))
        np.save(writer.path(VECTORS), half)
        index = faiss.IndexFlatIP(shop.dimension)
        index.add(half.astype(np.float32))
        faiss.write_index(index, str(writer.path(INDEX)))
        writer.path(RANKER).write_bytes(linear_ranker([1.0, 0.5, 2.0, 0.5, -0.1]))
        pq.write_table(_popular(shop), writer.path(POPULAR))
        query = QuerySpec()
        manifest = Manifest(
            id=snapshot_id,
            parent=parent,
            created_at=now.isoformat(),
            until=None,
            items=shop.count,
            dimension=shop.dimension,
            encoder="random",
            query=query,
            index=IndexSpec(kind="Flat", recall_at_500=1.0),
            ranker=RankerSpec(
                id=f"linear-{shop.seed}",
                kind="linear",
                output="scores",
                inputs=(
                    TensorSpec(name="features", dtype="float32", shape=("batch", "candidates", 5), columns=FEATURES),
                ),
            ),
            golden=(_golden(index, half, query),),
            evaluation={},
            files=writer.files(),
        )
        writer.finish(manifest)
    publish(root, snapshot_id)
    return snapshot_id


def linear_ranker(weights: list[float]) -> bytes:
    """An ONNX model: features [batch, candidates, F] times weights [F] -> scores [batch, candidates]."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["features", "w"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", "candidates", len(weights)])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", "candidates"])],
        [helper.make_tensor("w", TensorProto.FLOAT, [len(weights)], weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def _items(shop: Shop, ids: list[str]) -> pa.Table:
    return pa.table(
        {
            "item_id": ids,
            "title": [shop.titles.get(row, f"Item {row}") for row in range(shop.count)],
            "category": [CATEGORIES[row % 3] for row in range(shop.count)],
            "brand": [None] * shop.count,
            "price": [float(1 + row % 10) for row in range(shop.count)],
            "available": [row not in shop.hidden for row in range(shop.count)],
            "regions": [["north"] if row in shop.regional else None for row in range(shop.count)],
            "popularity": [1 - row / shop.count for row in range(shop.count)],
        },
        schema=contract_items.SCHEMA,
    )


def _popular(shop: Shop) -> pa.Table:
    shown = [row for row in range(shop.count) if row not in shop.hidden]
    lists: list[tuple[str | None, str | None, list[int]]] = [(None, None, shown), ("north", None, shown)]
    lists += [(None, name, [row for row in shown if row % 3 == at]) for at, name in enumerate(CATEGORIES)]
    entries = [
        {"region": region, "category": category, "row": row, "score": 1 - row / shop.count}
        for region, category, rows in lists
        for row in rows[:500]
    ]
    return pa.Table.from_pylist(entries, schema=contract_popular.SCHEMA)


def _golden(index: faiss.Index, vectors: np.ndarray, query: QuerySpec) -> GoldenQuery:
    context = Context(np.array([0], np.int32), np.array([2], np.uint8))
    scores, rows = index.search(query_vector(vectors, context, query)[None], min(10, len(vectors)))
    return GoldenQuery(rows=(0,), top_rows=tuple(rows[0].tolist()), top_scores=tuple(scores[0].tolist()))
