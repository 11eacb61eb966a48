"""The settings: one TOML file, environment variables over it (`FEEDLINE_SERVE__PORT`), validated at start, frozen."""

from __future__ import annotations

import ipaddress
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from services.errors import StartError

_PREFIX = "FEEDLINE_"
Port = Annotated[int, Field(ge=0, le=65535, description="0: a free one")]
Milliseconds = Annotated[float, Field(ge=0, le=60_000)]
Timeout = Annotated[float, Field(gt=0, le=60_000)]
"""Milliseconds; nothing is answered in none."""
Lifetime = Annotated[int, Field(ge=1, le=10 * 365 * 86_400)]
"""Seconds."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Serve(_Section):
    """The gRPC service."""

    host: str = "127.0.0.1"
    port: Port = 50051
    workers: int = Field(default=1, ge=1, le=256, description="processes that share the port; 1: this one alone")
    insecure: bool = Field(default=False, description="allows a non-loopback bind without TLS")
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = Field(default=None, description="set: clients must show a certificate of this CA")
    reflection: bool = False
    lame_duck_s: float = Field(
        default=0.5, ge=0, le=300, description="after SIGTERM it answers until no call has come for this long"
    )
    drain_s: float = Field(
        default=10.0, ge=0, le=300, description="at most this long; then what has begun may take as long again"
    )
    page_size: int = Field(default=20, ge=1, le=100)
    page_token_key: str = Field(default="", description="the same on all replicas: authenticates page tokens")
    max_page_depth: int = Field(default=1000, ge=1, le=2000, description="items shown over all pages of one feed")
    exact_scan_items: int = Field(
        default=12_000, ge=0, description="a filter that leaves fewer items is scanned exactly"
    )
    as_of: datetime | None = Field(
        default=None, description="a moment at which the clock stands still, for evaluation; UTC where no zone is given"
    )

    @property
    def now(self) -> Callable[[], float]:
        """Unix time in seconds: the machine's, or `as_of`."""
        if self.as_of is None:
            return time.time
        zoned = self.as_of if self.as_of.tzinfo else self.as_of.replace(tzinfo=UTC)
        return zoned.timestamp


class Budget(_Section):
    """The page budget and what is taken off it before scoring, milliseconds: 200 - 20 - 25 - 8 = 147."""

    page_ms: Milliseconds = 200
    network_ms: Milliseconds = 20
    features_ms: Milliseconds = 25
    render_ms: Milliseconds = 8
    fallback_ms: Milliseconds = Field(default=10, description="kept of the scoring budget for the fallback")

    @property
    def scoring_ms(self) -> float:
        """What is left for retrieval and rerank."""
        return self.page_ms - self.network_ms - self.features_ms - self.render_ms

    @model_validator(mode="after")
    def _parts_fit(self) -> Budget:
        if self.scoring_ms <= self.fallback_ms:
            parts = f"{self.page_ms:g} - {self.network_ms:g} - {self.features_ms:g} - {self.render_ms:g}"
            raise ValueError(f"{parts} = {self.scoring_ms:g} ms are left for scoring: more than fallback_ms is needed")
        return self


class Scoring(_Section):
    """Admission, the one queue and its batches."""

    admission: Literal["adaptive", "fixed"] = Field(
        default="adaptive", description="the work in flight follows the wait in the queue; fixed: max_in_flight"
    )
    max_in_flight: int = Field(default=64, ge=1, le=10_000, description="full scorings, at most")
    target_wait_ms: Milliseconds = Field(
        default=12, description="mean wait in the queue above which adaptive admission lets in less"
    )
    prefetch_share: float = Field(
        default=0.5, ge=0, le=1, description="share of the work in flight that prefetch may fill"
    )
    max_queue: int = Field(default=64, ge=1, le=10_000)
    max_batch: int = Field(default=32, ge=1, le=1024, description="pieces of work in a batch")
    max_pairs: int = Field(
        default=8800,
        ge=1000,
        le=10_000_000,
        description="pairs of a question and a candidate in a batch; a full scoring is 550, a personal step 50",
    )
    max_queue_delay_ms: Milliseconds = Field(default=0.5, description="an idle queue waits this long for company")
    threads: int = Field(default=1, ge=1, le=256, description="of FAISS and ONNX Runtime, per batch")
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="of session tower and rankers; cuda: extra gpu")
    device_id: int = Field(default=0, ge=0, le=255, description="which CUDA device")
    cascade: float = Field(
        default=0,
        ge=0,
        le=1,
        description="share of the questions, the most doubtful, that the snapshot's strong ranker scores, too; 0: none",
    )


class Slate(_Section):
    """Which of the ranked items a page shows, and in which order. The rules put items behind others, never away."""

    near_duplicates: Literal["off", "text", "vectors", "either", "both"] = Field(
        default="off", description="by equal text, by the cosine of the vectors, by either or by both at once"
    )
    similarity: float = Field(default=0.99, gt=0, le=1, description="cosine from which on two items are alike")
    category_cap: int = Field(default=0, ge=0, le=100, description="items of a category on a page; 0: any number")
    brand_cap: int = Field(default=0, ge=0, le=100, description="items of a brand on a page; 0: any number")
    mmr: float = Field(default=1.0, ge=0, le=1, description="weight of relevance against novelty; 1: relevance alone")
    hide_bought: bool = Field(default=False, description="hides what the user bought, as far as the history goes")


class Retrieval(_Section):
    """How candidates are found."""

    mode: Literal["shared", "personal"] = Field(
        default="shared",
        description="personal: the history enters the session vector, and no answer is shared or cached",
    )
    device: Literal["cpu", "cuda"] = Field(default="cpu", description="of vector search; cuda: extra gpu")
    device_id: int = Field(default=0, ge=0, le=255, description="which CUDA device")
    gpu_index: Literal["flat", "snapshot"] = Field(
        default="flat", description="on a device: all vectors, searched exactly, or the snapshot's own index"
    )
    gpu_temp_mb: int = Field(default=1024, ge=64, le=65_536, description="of device memory for one search")
    gpu_slices_mb: int = Field(
        default=2048,
        ge=0,
        le=262_144,
        description="of device memory for narrow filters; a copy of all vectors at least",
    )


class Console(_Section):
    """REST, metrics, health and the page."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: Port = 8080
    write_token: str = Field(default="", description="bearer token of POST /v1/events; required off loopback")


class Snapshots(_Section):
    """Where the nightly job publishes."""

    folder: Path = Path("data/snapshots")
    watch_s: float = Field(default=5.0, ge=0, le=3600, description="how often to look for a new CURRENT; 0: never")


class Cache(_Section):
    """The content-keyed cache. `url` empty: the state server is used."""

    enabled: bool = True
    url: str = ""
    prefix: str = Field(default="feedline", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    timeout_ms: Timeout = 20
    pool: int = Field(default=32, ge=1, le=10_000)
    soft_s: float = Field(default=300, gt=0, le=86_400 * 7, description="fresh for this long")
    hard_s: float = Field(default=3600, gt=0, le=86_400 * 7, description="kept for this long, for the STALE rung")
    jitter: float = Field(default=0.1, ge=0, le=0.5, description="lifetimes vary by this share")
    local_bytes: int = Field(default=64 << 20, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> Cache:
        if self.hard_s < self.soft_s:
            raise ValueError(f"hard_s ({self.hard_s:g}) must not be below soft_s ({self.soft_s:g})")
        return self


class State(_Section):
    """Sessions, histories and events. `url` empty: a Valkey server is started on a Unix socket in `folder`."""

    url: str = ""
    folder: Path = Path("data/valkey")
    prefix: str = Field(default="feedline", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    timeout_ms: Timeout = Field(default=20, description="of reading session and history; the feed does without then")
    write_timeout_ms: Timeout = Field(default=500, description="of storing events")
    pool: int = Field(
        default=256, ge=1, le=10_000, description="connections; a call that finds none free does without the server"
    )
    session_events: int = Field(default=100, ge=1, le=1000)
    session_s: Lifetime = Field(default=7 * 86_400, description="a session is kept for this long after its last event")
    event_id_s: Lifetime = Field(default=7 * 86_400, description="how long a repeated event_id is recognised")
    history_items: int = Field(
        default=256, ge=0, le=1000, description="bought last, that are kept of each user; 0: no histories"
    )
    history_s: Lifetime = Field(
        default=2 * 365 * 86_400, description="a history is kept for this long after it was last written"
    )
    max_stream_length: int = Field(default=5_000_000, ge=16)
    max_memory_mb: int = Field(default=1024, ge=16, description="of the embedded server")


class Log(_Section):
    """Structured logs on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["console", "json"] = "console"


class Settings(BaseSettings):
    """All sections. `index` belongs to the nightly job, which validates it."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=_PREFIX,
        env_nested_delimiter="__",
        nested_model_default_partial_update=True,
    )

    serve: Serve = Serve()
    budget: Budget = Budget()
    scoring: Scoring = Scoring()
    retrieval: Retrieval = Retrieval()
    slate: Slate = Slate()
    console: Console = Console()
    snapshots: Snapshots = Snapshots()
    cache: Cache = Cache()
    state: State = State()
    log: Log = Log()
    index: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over file; no .env file is read."""
        return env_settings, init_settings


def load_settings(path: Path | None) -> Settings:
    """Settings of a TOML file (None: the defaults) under the environment. Raises StartError naming key and range."""
    given: dict[str, Any] = {}
    if path is not None:
        try:
            given = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise StartError(f"settings {path}: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StartError(f"settings {path}: not TOML: {error}") from error
    if unknown := list(_passed_over(given, os.environ)):
        raise StartError("\n".join(f"settings {path or 'from the environment'}: {key}: unknown key" for key in unknown))
    try:
        return Settings(**given)
    except ValidationError as error:
        raise StartError(describe(error, path)) from error
    except SettingsError as error:
        raise StartError(f"settings from the environment: {error}") from error


def _passed_over(given: Mapping[str, object], environment: Mapping[str, str]) -> Iterator[str]:
    """Keys that pydantic-settings would not complain of: its own options, and sections misspelt in the environment.

    A name without "__" is none of ours: Kubernetes sets FEEDLINE_PORT for a service that is called feedline.
    """
    yield from (key for key in given if key.startswith("_"))
    for name in environment:
        section, nested, _ = name.removeprefix(_PREFIX).partition("__")
        if name.startswith(_PREFIX) and nested and section.lower() not in Settings.model_fields:
            yield name


_SECRETS = frozenset({"url", "write_token", "page_token_key"})


def describe(error: ValidationError, path: Path | None) -> str:
    """One line per key at fault: the key, what is wrong with it, what was given."""
    lines = []
    for fault in error.errors():
        key = ".".join(str(part) for part in fault["loc"]) or "settings"
        unsaid = fault["type"] in {"extra_forbidden", "missing"} or key.rpartition(".")[2] in _SECRETS
        given = "" if unsaid else f" (given: {fault['input']!r:.80})"
        message = "unknown key" if fault["type"] == "extra_forbidden" else fault["msg"].removeprefix("Value error, ")
        lines.append(f"settings {path or 'from the environment'}: {key}: {message}{given}")
    return "\n".join(lines)


def check_binds(settings: Settings) -> None:
    """Raises StartError where a port would be open to the network unprotected."""
    serve, console = settings.serve, settings.console
    if bool(serve.tls_certificate) != bool(serve.tls_key):
        raise StartError("serve.tls_certificate and serve.tls_key: set both or neither")
    if serve.tls_client_ca and not serve.tls_certificate:
        raise StartError("serve.tls_client_ca: needs serve.tls_certificate and serve.tls_key")
    if serve.workers > 1 and "cuda" in {settings.scoring.device, settings.retrieval.device}:
        raise StartError(
            "serve.workers: a device has one process: set 1, or scoring.device and retrieval.device to cpu"
        )
    if not is_loopback(serve.host) and not serve.tls_certificate and not serve.insecure:
        raise StartError(f"serve.host: {serve.host} is not loopback: set TLS, or allow plain text with --insecure")
    if console.enabled and not is_loopback(console.host) and not console.write_token:
        raise StartError(f"console.host: {console.host} is not loopback: set console.write_token")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server bound to `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
