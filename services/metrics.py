"""Every metric of the service, by name, in one place."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.147, 0.2, 0.3, 0.5, 1.0)
_BATCH = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The service's metrics on a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

        self.pages = counter("feedline_pages_total", "Pages answered", "rung", "degraded")
        self.reasons = counter("feedline_reasons_total", "Reasons given in pages", "reason")
        self.sources = counter("feedline_item_sources_total", "Items shown, by what brought them", "source")
        self.invalid = counter("feedline_invalid_requests_total", "Requests refused as invalid", "method")
        self.cache = counter("feedline_cache_total", "What the cache did for a page", "outcome")
        self.cache_events = counter("feedline_cache_events_total", "What went on inside the cache", "event")
        self.page_seconds = histogram("feedline_page_seconds", "Time of a page in the service", _SECONDS, "rung")
        self.stage_seconds = histogram("feedline_stage_seconds", "Time of a page in one stage", _SECONDS, "stage")
        self.batch_size = histogram("feedline_batch_size", "Pieces of work in a scored batch", _BATCH)
        self.strong = counter(
            "feedline_strong_ranker_total", "Questions for the strong ranker of the cascade", "outcome"
        )
        self.in_flight = gauge("feedline_in_flight", "Work that admission permits are held for, in full scorings")
        self.limit = gauge("feedline_in_flight_limit", "Work that may be in flight now, in full scorings")
        self.dropped = counter("feedline_dropped_total", "Work dropped before it was scored", "why")
        self.events = counter("feedline_events_total", "Events of RecordEvents", "outcome")
        self.server_failures = counter("feedline_server_failures_total", "Failed Redis calls", "server", "why")
        self.snapshot = gauge("feedline_snapshot_info", "1 for the snapshot that is served", "snapshot", "ranker")
        self.snapshot_refused = counter("feedline_snapshots_refused_total", "Snapshots refused by their checks", "why")
        self.snapshot_behind = gauge("feedline_snapshot_behind", "1 while CURRENT is not the snapshot that is served")
        self.ready = gauge("feedline_ready", "1 when the service is ready")
        self.embedded = counter("feedline_embedded_server_total", "What happened to the embedded server", "event")


class ParentMetrics:
    """Those of the parent of several workers, on a registry of their own; each worker has `Metrics`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.workers = Gauge("feedline_workers_running", "Workers that listen", registry=self.registry)
        self.exits = Counter("feedline_worker_exits_total", "Workers that ended unbidden", registry=self.registry)
        self.embedded = Counter(
            "feedline_embedded_server_total", "What happened to the embedded server", ["event"], registry=self.registry
        )
