"""Small snapshots straight from the contract, without the nightly job: random vectors and sessions, a linear ranker."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import faiss
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper

from indexer.contract import items as contract_items
from indexer.contract import popular as contract_popular
from indexer.contract.blend import BlendSpec
from indexer.contract.candidates import FEATURES
from indexer.contract.cascade import CascadeSpec
from indexer.contract.features import Context, query_vector
from indexer.contract.history import RepurchaseSpec
from indexer.contract.manifest import (
    ID_INDEX,
    INDEX,
    ITEMS,
    NEIGHBOURS,
    POPULAR,
    RANKER,
    SESSION_TOWER,
    SIMILARITIES,
    STRONG_RANKER,
    VECTORS,
    GoldenQuery,
    IndexSpec,
    Manifest,
    QuerySpec,
    RankerSpec,
    SourcesSpec,
    TensorSpec,
)
from indexer.contract.neighbours import NOBODY, NeighbourSpec
from indexer.contract.publish import SnapshotWriter, new_id, publish
from indexer.contract.towers import INPUTS, OUTPUT, TYPES, tower_inputs

CATEGORIES = ("tea", "coffee", "cups")
START = datetime(2026, 1, 1, tzinfo=UTC)
NEAR = 8
"""Neighbours of an item, at most."""
SOURCES = SourcesSpec(
    neighbours=NeighbourSpec(decay=0.8, limit=100),
    repurchase=RepurchaseSpec(linear=(1.0, -0.2, 1.0, 0.0, 0.1, 0.0)),
    shared=BlendSpec(ann=1.0, neighbours=1.0, history=3.0),
    personal=BlendSpec(ann=1.5, neighbours=1.0, history=2.0),
)
LEVELS = (0.0, -0.01, -10.0)
"""Of doubt by the margin at the cut: half of the questions have one of at most 0.01."""
WEIGHTS = {"retrieval": 1.0, "popularity": 0.3, "bought": 2.0, "days_since_last": -0.3, "blend_score": 0.5}
"""Of the ranker, by feature."""

FEATURES_INPUT = TensorSpec(
    name="features", dtype="float32", shape=("batch", "candidates", len(FEATURES)), columns=FEATURES
)


@dataclass
class Shop:
    """A catalogue of `count` items "i0", "i1", ... in three categories; `hidden` rows are unavailable.

    Item i is the (i+1)-th most popular. Rows in `regional` belong to region "north" only; the rest are everywhere.
    Neighbours come of random sessions. `tower`: session vectors by a small ONNX tower, not by the mean. `strong`: with
    a second ranker, which likes what the first does not, asked first where scores are close; its weights are the
    first's times `strong_weight`.
    """

    count: int = 1000
    dimension: int = 16
    seed: int = 7
    hidden: frozenset[int] = frozenset()
    regional: frozenset[int] = frozenset()
    titles: dict[int, str] = field(default_factory=dict)
    tower: bool = False
    strong: bool = False
    strong_weight: float = -1.0


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
        neighbours, similarities = co_occurrence(shop.count, rng)
        there = neighbours != NOBODY
        starts = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32)
        np.save(writer.path(NEIGHBOURS), np.concatenate([starts, neighbours[there]]))
        np.save(writer.path(SIMILARITIES), similarities[there])
        query = QuerySpec(kind="session_tower") if shop.tower else QuerySpec()
        if shop.tower:
            writer.path(SESSION_TOWER).write_bytes(session_tower(shop.dimension, shop.seed))
        writer.path(RANKER).write_bytes(linear_ranker(WEIGHTS))
        strong = RankerSpec(id=f"strong-{shop.seed}", kind="linear", output="scores", inputs=(FEATURES_INPUT,))
        if shop.strong:
            weights = {name: shop.strong_weight * each for name, each in WEIGHTS.items()}
            writer.path(STRONG_RANKER).write_bytes(linear_ranker(weights))
        pq.write_table(_popular(shop), writer.path(POPULAR))
        manifest = Manifest(
            id=snapshot_id,
            parent=parent,
            created_at=now.isoformat(),
            until=None,
            items=shop.count,
            dimension=shop.dimension,
            encoder="random",
            query=query,
            sources=SOURCES,
            index=IndexSpec(kind="Flat", recall_at_500=1.0),
            ranker=RankerSpec(
                id=f"linear-{shop.seed}",
                kind="linear",
                output="scores",
                inputs=(FEATURES_INPUT,),
            ),
            strong_ranker=strong if shop.strong else None,
            cascade=CascadeSpec(levels=LEVELS, strong_ms=0.01) if shop.strong else None,
            golden=(_golden(index, half, shop),),
            evaluation={},
            files=writer.files(),
        )
        writer.finish(manifest)
    publish(root, snapshot_id)
    return snapshot_id


def linear_ranker(weights: dict[str, float]) -> bytes:
    """An ONNX model: features [batch, candidates, F] times the weights by name -> scores [batch, candidates]."""
    values = [weights.get(name, 0.0) for name in FEATURES]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["features", "w"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", "candidates", len(values)])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", "candidates"])],
        [helper.make_tensor("w", TensorProto.FLOAT, [len(values)], values)],
    )
    return _model(graph)


def session_tower(dimension: int, seed: int) -> bytes:
    """An ONNX model: the sum of the item vectors, weighted by type and 1 / place, and a constant for who has none."""
    rng = np.random.default_rng(seed)
    nodes = [
        helper.make_node("Cast", ["mask"], ["present"], to=TensorProto.FLOAT),
        helper.make_node("CumSum", ["present", "one"], ["place"]),
        helper.make_node("Max", ["place", "least"], ["divisor"]),
        helper.make_node("Gather", ["type_weight", "types"], ["by_type"]),
        helper.make_node("Mul", ["by_type", "present"], ["of_present"]),
        helper.make_node("Div", ["of_present", "divisor"], ["weight"]),
        helper.make_node("Unsqueeze", ["weight", "last"], ["column"]),
        helper.make_node("Mul", ["item_vectors", "column"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "one"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "constant"], [OUTPUT]),
    ]
    vectors, types, mask = INPUTS
    graph = helper.make_graph(
        nodes,
        "tower",
        [
            helper.make_tensor_value_info(vectors, TensorProto.FLOAT, ["batch", "context", dimension]),
            helper.make_tensor_value_info(types, TensorProto.INT64, ["batch", "context"]),
            helper.make_tensor_value_info(mask, TensorProto.BOOL, ["batch", "context"]),
        ],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", dimension])],
        [
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
            helper.make_tensor("last", TensorProto.INT64, [1], [2]),
            helper.make_tensor("least", TensorProto.FLOAT, [1], [1.0]),
            helper.make_tensor("type_weight", TensorProto.FLOAT, [TYPES], [0.0, 0.0, 1.0, 1.2, 2.0, 2.5, 0.7]),
            helper.make_tensor("constant", TensorProto.FLOAT, [dimension], rng.normal(0, 0.1, dimension).tolist()),
        ],
    )
    return _model(graph)


def co_occurrence(count: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float16]]:
    """Neighbours int32 [count, NEAR] and similarities float16, most similar first, of random sessions of 4 items."""
    sessions = rng.integers(0, count, (2 * count, 4))
    pairs = np.concatenate([sessions[:, [a, b]] for a in range(4) for b in range(4) if a != b])
    found, times = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0, return_counts=True)
    order = np.lexsort((-times, found[:, 0]))
    neighbours = np.full((count, NEAR), NOBODY, np.int32)
    similarities = np.zeros((count, NEAR), np.float16)
    starts = np.searchsorted(found[order, 0], np.arange(count + 1))
    for row in range(count):
        best = order[starts[row] : starts[row + 1]][:NEAR]
        neighbours[row, : len(best)] = found[best, 1]
        similarities[row, : len(best)] = times[best] / 4
    return neighbours, similarities


def _model(graph: onnx.GraphProto) -> bytes:
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
            "variant": list(range(shop.count)),
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


def _golden(index: faiss.Index, vectors: npt.NDArray[np.float16], shop: Shop) -> GoldenQuery:
    context = Context(np.array([0], np.int32), np.array([2], np.uint8))
    if shop.tower:
        tower = onnxruntime.InferenceSession(session_tower(shop.dimension, shop.seed))
        (queries,) = tower.run([OUTPUT], tower_inputs(vectors, [context]))
    else:
        queries = query_vector(vectors, context, QuerySpec())[None]
    scores, rows = index.search(queries, min(10, len(vectors)))
    return GoldenQuery(rows=(0,), top_rows=tuple(rows[0].tolist()), top_scores=tuple(scores[0].tolist()))
