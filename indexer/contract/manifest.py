"""manifest.json: what a snapshot is made of, what made it, and the checksum of every file in it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from indexer.contract.blend import BlendSpec
from indexer.contract.cascade import CascadeSpec
from indexer.contract.history import RepurchaseSpec
from indexer.contract.neighbours import NeighbourSpec

FORMAT: Literal[4] = 4
MANIFEST = "manifest.json"
ITEMS = "items.parquet"
ID_INDEX = "id_index.npy"
VECTORS = "vectors.npy"
INDEX = "index.faiss"
SESSION_TOWER = "session_tower.onnx"
NEIGHBOURS = "neighbours.npy"
SIMILARITIES = "similarities.npy"
RANKER = "ranker.onnx"
STRONG_RANKER = "strong_ranker.onnx"
TEACHER_SCORES = "teacher_scores.parquet"
POPULAR = "popular.parquet"
REPORT = "report.json"
REPORT_PAGE = "report.html"
ID_PATTERN = r"^[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}$"
REQUIRED = (ITEMS, ID_INDEX, POPULAR)
"""Without these not even the popularity list can be served."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileEntry(_Frozen):
    """One file of the snapshot: its size in bytes and its sha256 in hex."""

    size: int = Field(ge=0)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class QuerySpec(_Frozen):
    """How a context becomes the query vector: by the session tower, or by `features.query_vector` where sessions are
    too few to train one. `decay` is of the latter."""

    kind: Literal["recency_weighted_mean", "session_tower"] = "recency_weighted_mean"
    max_events: int = Field(default=20, ge=1, le=100, description="of the session that a question knows")
    decay: float = Field(default=0.8, gt=0, le=1)
    places: int = Field(default=50, ge=1, le=1000, description="events that the session tower can attend to")


class SourcesSpec(_Frozen):
    """How the sources are asked and blended, in either mode of retrieval (see `towers.Mode`)."""

    neighbours: NeighbourSpec = NeighbourSpec()
    repurchase: RepurchaseSpec = RepurchaseSpec()
    shared: BlendSpec = BlendSpec()
    personal: BlendSpec = BlendSpec()
    history: int = Field(default=256, ge=0, le=10_000, description="latest items of a user's history that take part")


class SearchPoint(_Frozen):
    """How the index is searched where a filter leaves at least `share` of the items, and the recall measured there.

    Where filters leave less than the least share of all points, that point's holds.
    """

    share: float = Field(gt=0, le=1)
    nprobe: int = Field(ge=0, description="lists, nearest first, of those that hold what is left; HNSW: efSearch")
    refine: float = Field(default=0, ge=0, description="times k candidates that are scored exactly; 0: none")
    recall_at_500: float = Field(ge=0, le=1)


class TriedPoint(_Frozen):
    """A row of the table that an operating point was chosen from. `ms` is counted: see `indexer.ann.cost`."""

    kind: str
    nprobe: int = Field(ge=0)
    refine: float = Field(ge=0)
    recall_at_500: float = Field(ge=0, le=1)
    low: float = Field(description="recall_at_500 less its standard error: what has to hold the floor")
    ms: float = Field(ge=0, description="of one query, by the work that it takes; the mean of the tuning queries")
    p99_ms: float = Field(ge=0)
    bytes: int = Field(ge=0, description="of the index")


class IndexSpec(_Frozen):
    """The FAISS index and the operating point at which `recall_at_500` was measured. Metric: inner product."""

    kind: str
    nprobe: int = Field(default=0, ge=0, description="0: the index has no such parameter")
    refine: float = Field(default=0, ge=0, description="times k candidates that are scored exactly; 0: none")
    recall_at_500: float = Field(ge=0, le=1)
    filtered: tuple[SearchPoint, ...] = Field(default=(), description="where filters leave a part; most first")
    table: tuple[TriedPoint, ...] = Field(default=(), description="what was measured")

    @property
    def points(self) -> tuple[SearchPoint, ...]:
        """The operating point, which is for searches without a filter, and those for filters."""
        whole = SearchPoint(share=1, nprobe=self.nprobe, refine=self.refine, recall_at_500=self.recall_at_500)
        return whole, *self.filtered

    def point(self, share: float) -> SearchPoint:
        """The point for a filter that leaves this share of the items."""
        return next((point for point in self.points if point.share <= share), self.points[-1])


class TensorSpec(_Frozen):
    """One input or output of the ranker. A dimension is a name ("batch", "candidates", "context") or a number."""

    name: str
    dtype: Literal["float32", "int64", "bool"]
    shape: tuple[str | int, ...]
    columns: tuple[str, ...] = Field(default=(), description="names along the last dimension, in order")


class RankerSpec(_Frozen):
    """What the service must feed to the ranker and what it gets: scores [batch, candidates], higher is better."""

    id: str
    kind: str
    depth: int = Field(default=50, ge=1, le=500, description="candidates that are reranked")
    places: int = Field(default=50, ge=1, le=1000, description="events that the ranker can attend to")
    inputs: tuple[TensorSpec, ...]
    output: str


class GoldenQuery(_Frozen):
    """A context, as if all its items had been viewed, and the best rows and scores of the builder's own search."""

    rows: tuple[int, ...]
    top_rows: tuple[int, ...]
    top_scores: tuple[float, ...]


class Manifest(_Frozen):
    """The contract of one snapshot. A reader refuses a `format` that it does not know; 3 is 4 without a seal."""

    format: Literal[3, 4] = FORMAT
    seal: str = Field(default="", pattern="^([0-9a-f]{64})?$", description="sha256 of the rest of it, see `seal`")
    id: str = Field(pattern=ID_PATTERN)
    parent: str | None
    created_at: str
    until: str | None = Field(description="events after this time took no part; null: all events")
    last_event: str | None = Field(default=None, description="time of the last event that took part")
    learned_from: str = Field(default="", description="digest of what the models were learned from; empty: unknown")
    items: int = Field(ge=1)
    dimension: int = Field(ge=1)
    encoder: str = Field(description="fingerprint of the content encoder")
    query: QuerySpec
    sources: SourcesSpec = SourcesSpec()
    index: IndexSpec
    ranker: RankerSpec
    strong_ranker: RankerSpec | None = Field(default=None, description="of the cascade; null: there is none")
    cascade: CascadeSpec | None = Field(default=None, description="when the strong ranker is asked")
    golden: tuple[GoldenQuery, ...]
    evaluation: dict[str, Any]
    files: dict[str, FileEntry]
