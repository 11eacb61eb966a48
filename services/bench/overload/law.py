"""What was measured at a load, beside what both laws say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from services.bench.load.measure import CACHED, Figures
from services.planner.capacity import Costs, fallback_share, simple_fallback_share

_QUANTILES = ("p50", "p99")
_KINDS = ("scored", "hit", "fallback")
_TOO_FEW = 0.1
"""Share of fallbacks below which what one of them cost cannot be told from the rest."""


@dataclass(frozen=True, slots=True)
class Law:
    """What the laws are told: the provisioned peak and the plateau (both a second), costs, and the service's cores."""

    peak_qps: float
    plateau_qps: float
    costs: Costs
    cores: float

    @classmethod
    def of(cls, report: dict[str, Any], service: str) -> Law:
        """That of a report, for its "cold" or its "warm" service."""
        told = report["costs"][service]
        scored, hit, fallback = ((told[name]["cpu_ms"] if name in told else 0.0) / 1e3 for name in _KINDS)
        return cls(report["peak_qps"], report["plateau_qps"], Costs(scored, hit, fallback), report["cores"])

    def with_costs(self, load: float, hit_share: float) -> float:
        """The share that falls back, counting what hits and fallbacks cost."""
        return fallback_share(self.costs, cores=self.cores, load=load, hit_share=hit_share)

    def simple(self, load: float, hit_share: float) -> float:
        """The share that falls back, if hits and fallbacks cost nothing."""
        return simple_fallback_share(capacity=self.plateau_qps, load=load, hit_share=hit_share)

    def row(self, step: Figures) -> dict[str, Any]:
        """The step in short. The hit share that the laws are told is the measured one: ranking hits and single-flight
        waiters, of all answers. `law_error_points`: measured less law, in hundredths."""
        load, service = step["offered_qps"], step["service"]
        hits = hit_share(step)
        law = self.with_costs(load, hits)
        share = step["fallback_share"]
        return {
            "load_times_peak": round(step["qps"] / self.peak_qps, 3),
            "offered_qps": load,
            "seconds": step["seconds"],
            "answered": step["answered"],
            "fallback_share": share,
            "law_fallback_share": round(law, 5),
            "law_error_points": None if share is None else round(100 * (share - law), 2),
            "simple_law_fallback_share": round(self.simple(load, hits), 5),
            "p50_ms": step["latency_ms"]["p50"],
            "p99_ms": step["latency_ms"]["p99"],
            "fallback_p50_ms": step["fallback_ms"]["p50"],
            "fallback_p99_ms": step["fallback_ms"]["p99"],
            "latency_ms_by_rung": {
                rung: {name: took[name] for name in ("answers", *_QUANTILES)}
                for rung, took in step["latency_ms_by_rung"].items()
            },
            "goodput_qps": step["goodput_qps"],
            "non_ok": step["non_ok"],
            "non_ok_by_code": step["non_ok_by_code"],
            "cache_share": hits,
            "reason_share": step["reason_share"],
            "queue_ms": step["stage_ms"]["queue"],
            "service_cores": _cores(step),
            "cpu_ms_per_answer": service["cpu_ms_per_answer_with_children"],
            "fallback_cpu_ms": self._fallback_cpu_ms(step, hits),
            "others_cores": step["others_cores"],
            "generator_dropped": step["generator_dropped"],
            "generator_bound": step["generator_bound"],
            "generator_bound_by": step["generator_bound_by"],
        }

    def _fallback_cpu_ms(self, step: Figures, hits: float) -> float | None:
        """Of a fallback under this very load: what is left once scored answers and hits are paid for at their costs.
        None where too little fell back to tell. What was never answered cost something, too, and counts in."""
        share, answered = step["fallback_share"] or 0.0, step["answered"]
        if share < _TOO_FEW:
            return None
        scored = max(0.0, 1 - hits - share)
        paid = answered * (scored * self.costs.scored + hits * self.costs.hit)
        spent: float = step["service"]["cpu_s_with_children"]
        return float(round((spent - paid) / (share * answered) * 1e3, 4))


def hit_share(step: Figures) -> float:
    """Ranking hits and single-flight waiters, of all answers."""
    return round(min(1.0, sum(step["cache_share"].get(name) or 0.0 for name in CACHED)), 5)


def _cores(step: Figures) -> float | None:
    """CPU seconds a second of the service and its children."""
    service = step["service"]
    if not service["cores"]:
        return None
    return float(round(service["cores"] * service["cpu_s_with_children"] / service["cpu_s"], 3))
