"""manifest.json: what a snapshot is made of, what made it, and the checksum of every file in it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT: Literal[1] = 1
MANIFEST = "manifest.json"
ITEMS = "items.parquet"
ID_INDEX = "id_index.npy"
VECTORS = "vectors.npy"
INDEX = "index.faiss"
RANKER = "ranker.onnx"
POPULAR = "popular.parquet"
REPORT = "report.json"
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
    """How a context becomes the query vector: see `features.query_vector`."""

    kind: Literal["recency_weighted_mean"] = "recency_weighted_mean"
    max_events: int = Field(default=20, ge=1, le=100)
    decay: float = Field(default=0.8, gt=0, le=1)


class IndexSpec(_Frozen):
    """The FAISS index and the operating point at which `recall_at_500` was measured. Metric: inner product."""

    kind: str
    nprobe: int = Field(default=0, ge=0, description="0: the index has no such parameter")
    recall_at_500: float = Field(ge=0, le=1)


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
    inputs: tuple[TensorSpec, ...]
    output: str


class GoldenQuery(_Frozen):
    """A context and the best rows and scores that the builder's own retrieval gave for it."""

    rows: tuple[int, ...]
    top_rows: tuple[int, ...]
    top_scores: tuple[float, ...]


class Manifest(_Frozen):
    """The contract of one snapshot. A reader refuses a `format` that it does not know."""

    format: Literal[1] = FORMAT
    id: str = Field(pattern=ID_PATTERN)
    parent: str | None
    created_at: str
    until: str | None = Field(description="events after this time took no part; null: all events")
    items: int = Field(ge=1)
    dimension: int = Field(ge=1)
    encoder: str = Field(description="fingerprint of the content encoder")
    query: QuerySpec
    index: IndexSpec
    ranker: RankerSpec
    golden: tuple[GoldenQuery, ...]
    evaluation: dict[str, Any]
    files: dict[str, FileEntry]
