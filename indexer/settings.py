"""The settings of the nightly job, `[index]` of the TOML: frozen, validated at start, passed by constructor."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from indexer.contract.manifest import QuerySpec

EventName = Literal["impression", "view", "click", "cart", "purchase"]
Precision = Literal["fp32", "bf16", "int8"]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class _Columns(_Section):
    def named(self, field: str) -> bool:
        """Whether the user gave the column another name than the default: then it must exist."""
        return bool(getattr(self, field) != type(self).model_fields[field].default)

    @field_validator("*")
    @classmethod
    def _named(cls, value: str) -> str:
        if not value:
            raise ValueError("the name of a column in the file is expected, not an empty string")
        return value


class CatalogueColumns(_Columns):
    """What the columns are called in the user's files: `item_id` and `title` must exist, and whatever is renamed."""

    item_id: str = "item_id"
    title: str = "title"
    description: str = "description"
    category: str = "category"
    brand: str = "brand"
    price: str = "price"
    available: str = "available"
    regions: str = "regions"
    images: str = "images"


class EventColumns(_Columns):
    """As CatalogueColumns. `session_id`, `item_id` and `occurred_at` must exist, and whatever is renamed."""

    event_id: str = "event_id"
    tenant: str = "tenant"
    session_id: str = "session_id"
    user_id: str = "user_id"
    item_id: str = "item_id"
    type: str = "type"
    occurred_at: str = "occurred_at"
    region: str = "region"


class CatalogueSettings(_Section):
    """How the catalogue is read."""

    columns: CatalogueColumns = CatalogueColumns()
    region_separator: str = Field(default="|", min_length=1, max_length=4, description="between regions in one text")
    delimiter: str = Field(default=",", min_length=1, max_length=1, description="of .csv files; .tsv has tabs")
    max_bad_share: float = Field(default=0.05, ge=0, le=1)


class EventSettings(_Section):
    """How the events are read."""

    columns: EventColumns = EventColumns()
    default_type: EventName = Field(default="purchase", description="of events whose type is absent or empty")
    type_names: dict[str, EventName] = Field(
        default={"impression": "impression", "view": "view", "click": "click", "cart": "cart", "purchase": "purchase"},
        description="the words of the files, in lower case, beside these five",
    )
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    max_bad_share: float = Field(default=0.05, ge=0, le=1)


class ImageSettings(_Section):
    """Pictures of items: files below `root`, named by the catalogue's column `images`; never read by the service."""

    root: Path | None = Field(default=None, description="None: there are no pictures, the column is not read")
    weight: float = Field(
        default=0.5, ge=0, le=1, description="of the pictures in the content vector; the text's is 1 - weight"
    )
    max_bytes: int = Field(default=20_000_000, ge=1, description="of a file")
    max_pixels: int = Field(default=40_000_000, ge=1, description="of a picture")
    max_images: int = Field(default=8, ge=1, le=1000, description="of an item; the first ones")
    max_frames: int = Field(default=32, ge=1, le=10_000, description="of a folder, which is a video; evenly spaced")


class RaySettings(_Section):
    """Where `engine = "ray"` encodes. Workers need the same model and pictures at the same places."""

    address: str = Field(default="", description="of a cluster; empty: one of its own, on this machine, for this build")
    workers: int = Field(default=0, ge=0, le=10_000, description="each with the model and a core; 0: index.threads")
    object_store_mb: int = Field(default=256, ge=80, description="of a cluster of its own; beyond it goes to disk")


class EncoderSettings(_Section):
    """The sentence-transformers model: a hub name or a local folder, with weights in safetensors."""

    kind: Literal["transformer", "static"] = Field(
        default="transformer",
        description="static: a vector for each token, distilled from the model once; a hundred times as fast",
    )
    model: str = Field(default="sentence-transformers/all-MiniLM-L6-v2", min_length=1)
    dimensions: int = Field(default=256, ge=8, le=4096, description="of a static model's vectors")
    batch_size: int = Field(default=64, ge=1, le=8192, description="texts; a static model takes 64 batches at once")
    shard_size: int = Field(
        default=65_536,
        ge=1,
        le=1_000_000,
        description="texts; what a kill loses at most, beside the few chunks in hand",
    )
    shard_seconds: float = Field(default=30, ge=0, le=3600, description="a shard is written after so long, too")
    max_seq_length: int | None = Field(default=None, ge=8, le=32_768, description="tokens; None: the model's own")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    precision: Precision = Field(default="fp32", description="bf16 by torch; int8 by ONNX Runtime, on the CPU")
    images: ImageSettings = ImageSettings()
    engine: Literal["local", "ray"] = "local"
    ray: RaySettings = RaySettings()

    @property
    def chunk(self) -> int:
        """Texts that are encoded as one piece of work, never more than a shard."""
        return min(self.shard_size, self.batch_size * (64 if self.kind == "static" else 1))

    @model_validator(mode="after")
    def _fits_together(self) -> EncoderSettings:
        if self.kind == "static" and (self.precision != "fp32" or self.images.root is not None):
            raise ValueError("kind static is for texts in precision fp32: kind transformer is expected for others")
        return self


class PopularitySettings(_Section):
    """Popularity halves every `half_life_days`; an event counts by its type."""

    half_life_days: float = Field(default=14, gt=0, le=3650)
    view: float = Field(default=1, ge=0, le=1000)
    click: float = Field(default=1, ge=0, le=1000)
    cart: float = Field(default=3, ge=0, le=1000)
    purchase: float = Field(default=5, ge=0, le=1000)
    list_length: int = Field(default=500, ge=1, le=10_000)


KindName = Literal["ivf_sq8", "ivf_pq", "ivf_rabitq", "hnsw"]


class AnnSettings(_Section):
    """The FAISS index and the search for its operating point; kinds: see `indexer.ann.kinds`."""

    recall_floor: float = Field(default=0.95, ge=0, le=1, description="recall@500 against exact search")
    max_ms: float = Field(
        default=10, gt=0, le=10_000, description="99th percentile of one query, as it is counted; see indexer.ann.cost"
    )
    flat_up_to: int = Field(default=20_000, ge=0, description="items; up to here search is exact")
    kinds: tuple[KindName, ...] = Field(
        default=("ivf_sq8", "ivf_rabitq"), min_length=1, description="that are built and compared; one: no comparison"
    )
    memory_mb: int = Field(default=820, ge=1, description="of an index; kinds that would take more are not tried")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="that finds the lists; cuda: extra gpu")
    device_id: int = Field(default=0, ge=0, le=255, description="which CUDA device")
    tune_queries: int = Field(default=256, ge=1, le=100_000)


class TowersSettings(_Section):
    """How the towers are trained; see `indexer.learn.tower_training.TowerSettings`."""

    epochs: int = Field(default=6, ge=1, le=100, description="at most; as many as lower the loss on later sessions")
    batch: int = Field(default=512, ge=2, le=65_536)
    places: int = Field(default=50, ge=1, le=1000, description="events of a session and before that are attended to")
    targets: int = Field(default=8, ge=1, le=1000, description="of a session, a step")
    negatives: int = Field(default=2048, ge=1, le=1_000_000, description="drawn for each step")
    sessions: int | None = Field(default=150_000, ge=1, description="learned from in an epoch, the newest; None: all")
    device: Literal["auto", "cpu", "cuda"] = "auto"


class NeighbourSettings(_Section):
    """Co-occurrence lists; see `indexer.neighbours`."""

    count: int = Field(default=200, ge=1, le=1000, description="neighbours of each item")
    places: int = Field(
        default=200_000_000,
        ge=1,
        description="of all lists together, at most, 6 bytes each: more items have shorter lists",
    )
    shrink: float = Field(default=5, ge=0, le=1000)
    longest_session: int = Field(default=300, ge=2, le=10_000, description="items; longer ones count no pairs")
    pairs: int = Field(default=500_000_000, ge=1, description="of items in sessions, the newest, that are counted")


TeacherName = Literal["trees", "transformer", "mean", "cross_encoder"]


class LearnSettings(_Section):
    """What the models learn from. Windows are shares of the sessions with two items or more, the latest ones."""

    min_sessions: int = Field(
        default=1000, ge=10, description="fewer: nothing is learned; content and neighbours serve"
    )
    train_share: float = Field(default=0.15, gt=0, lt=0.5, description="of the sessions, for the rankers")
    validate_share: float = Field(default=0.05, gt=0, lt=0.5, description="that follow, for all that is chosen")
    evaluate_share: float = Field(default=0.08, gt=0, lt=0.5, description="that follow, for the report and the gates")
    exact_up_to: int = Field(
        default=150_000, ge=0, description="items; beyond, candidates of past questions come from an inverted index"
    )
    train_questions: int = Field(default=6000, ge=1, le=1_000_000, description="at most; sampled")
    validate_questions: int = Field(default=2000, ge=1, le=1_000_000, description="at most; sampled")
    evaluate_questions: int = Field(default=3000, ge=1, le=1_000_000, description="at most; sampled")
    towers: TowersSettings = TowersSettings()
    neighbours: NeighbourSettings = NeighbourSettings()
    teachers: tuple[TeacherName, ...] = Field(default=("trees", "transformer", "mean"), min_length=1)
    strong_ranker: bool = Field(default=False, description="publish the listwise transformer for scoring.cascade, too")
    transformer_members: int = Field(default=2, ge=1, le=16, description="whose mean is the transformer teacher")
    soft: float = Field(default=0.5, ge=0, le=1, description="weight of the teacher in the distilled student's loss")
    epochs: int = Field(default=8, ge=1, le=100, description="of rankers, at most")


VariantName = Literal["fp32", "fp16", "int8", "int8_trained", "pruned_by_a_quarter", "pruned_by_half"]


class RankerSettings(_Section):
    """The ranker that is published."""

    depth: int = Field(default=50, ge=1, le=500, description="candidates that are reranked")
    places: int = Field(default=50, ge=1, le=1000, description="events that it attends to")
    history: int = Field(default=256, ge=0, le=10_000, description="latest items of a user's history that take part")
    floor: float = Field(default=0.005, ge=0, le=1, description="share of NDCG@10 that a smaller ranker may lose")
    variants: tuple[VariantName, ...] = Field(
        default=("fp32", "fp16", "int8", "int8_trained", "pruned_by_a_quarter", "pruned_by_half"),
        min_length=1,
        description="of the ranker; the cheapest within the floor is published",
    )
    price_per_vcpu_hour: float = Field(default=0.04, ge=0, le=1000, description="dollars")


class GateSettings(_Section):
    """What must hold before a snapshot is published."""

    max_shrink: float = Field(default=0.2, ge=0, le=1, description="share of the parent's items that may be gone")
    min_sessions: int = Field(default=200, ge=1, description="in the evaluation; with fewer NDCG@10 is no gate")
    ranker_tolerance: float = Field(default=0.005, ge=0, le=1, description="NDCG@10 it may lack to the blend's order")
    parent_tolerance: float = Field(default=0.02, ge=0, le=1, description="share of the parent's NDCG@10 it may lack")


class IndexSettings(_Section):
    """Everything the nightly job is told."""

    catalogue: CatalogueSettings = CatalogueSettings()
    events: EventSettings = EventSettings()
    encoder: EncoderSettings = EncoderSettings()
    vector_store: Path = Field(default=Path("data/vectors"), description="content vectors of all builds")
    popularity: PopularitySettings = PopularitySettings()
    query: QuerySpec = QuerySpec()
    ann: AnnSettings = AnnSettings()
    learn: LearnSettings = LearnSettings()
    ranker: RankerSettings = RankerSettings()
    gates: GateSettings = GateSettings()
    keep: int = Field(default=3, ge=1, le=1000, description="snapshots that stay")
    seed: int = Field(default=20_261_130, ge=0, le=2**31 - 1)
    threads: int = Field(
        default=0, ge=0, le=1024, description="0: as many as there are cores; 1: the same input gives the same bytes"
    )
    memory_limit_mb: int = Field(default=2048, ge=256, description="of DuckDB; beyond it goes to disk")

    @property
    def thread_count(self) -> int:
        """Threads of DuckDB, FAISS and torch."""
        return self.threads or len(os.sched_getaffinity(0))
