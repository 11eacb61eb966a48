"""Smaller rankers behind the same inputs and outputs: what each costs and what it loses; the floor decides."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from indexer.errors import GateFailed
from indexer.learn.intervals import Bootstrap, Interval
from indexer.learn.list_training import ListSettings
from indexer.learn.lists import Lists, Scores
from indexer.learn.onnx_file import cpu_session
from indexer.learn.onnx_ranker import Clock, onnx_scores, parts, run_times, taken_by
from indexer.learn.quantise import half, int8
from indexer.learn.ranker_export import ranker_bytes
from indexer.learn.slim import pruned, used_to_int8
from indexer.learn.student import Student

FLOOR = 0.005
"""Share of NDCG@10 that a published ranker may lose, unless the settings say otherwise."""
VARIANTS = ("fp32", "fp16", "int8", "int8_trained", "pruned_by_a_quarter", "pruned_by_half")
"""int8 after training and trained for; pruned: hidden units and attention heads."""
_WORTH_IT = 0.05
"""What a variant must save before it takes the place of one that stands earlier in the table: less is noise."""
_CALIBRATION, _CHUNK = 512, 64
_BATCH = 32
_SINGLES, _BATCHES = 400, 100


@dataclass(frozen=True, slots=True)
class Compressed:
    """A variant of the ranker, as ONNX."""

    name: str
    model: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.model)


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of the table. Milliseconds of ONNX Runtime on one thread that does not spin, at batch 1 and 32.

    `throughput`: requests that a second of one CPU serves at batch 32, and `dollars_per_million` of them, both with the
    assembly of their features. `loss`: of NDCG@10, over that of the first row, paired by user; below 0: a gain.
    `fault`: why it may not be published whatever it costs; empty: nothing.
    """

    name: str
    size: int
    p50_ms: float
    p99_ms: float
    batch_p50_ms: float
    batch_p99_ms: float
    throughput: float
    dollars_per_million: float
    ndcg_at_10: float
    loss: Interval
    fault: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For report.json: numbers rounded, null where a number is not finite."""
        return {key: _plain(value) for key, value in asdict(self).items()}


def variants(
    student: Student,
    dimension: int,
    lists: Lists,
    settings: ListSettings,
    *,
    soft: Scores | None = None,
    wanted: Sequence[str] = VARIANTS,
    advance: Callable[[int], None] = lambda done: None,
) -> Iterator[Compressed]:
    """The variants that are `wanted`, of VARIANTS, in this order. The student itself stays as it is.

    `lists`, `settings` and `soft` are those that the student was trained with: int8 takes its ranges from them, and
    what is trained for int8, or pruned, learns from them for another epoch. Same input, same bytes.
    """
    whole = ranker_bytes(student, dimension)
    session = cpu_session(whole, 1)
    sample = lists.take(np.arange(min(_CALIBRATION, len(lists))))
    batches = [taken_by(session, part) for part in parts(sample, _CHUNK)]

    def slimmed(share: float) -> bytes:
        return ranker_bytes(pruned(student, lists, share, settings, soft), dimension)

    makers: dict[str, Callable[[], bytes]] = {
        "fp32": lambda: whole,
        "fp16": lambda: half(whole),
        "int8": lambda: int8(whole, batches),
        "int8_trained": lambda: int8(ranker_bytes(used_to_int8(student, lists, settings, soft), dimension), batches),
        "pruned_by_a_quarter": lambda: slimmed(0.75),
        "pruned_by_half": lambda: slimmed(0.5),
    }
    for name in wanted:
        yield Compressed(name, makers[name]())
        advance(1)


def measure(
    variants: Sequence[Compressed],
    lists: Lists,
    *,
    price_per_vcpu_hour: float,
    assembly_s: float,
    seed: int,
    clock: Clock = time.perf_counter,
    cpu: Clock = time.thread_time,
) -> list[Measured]:
    """A row for each variant, in order; the first is what the others are compared with.

    `assembly_s`: CPU seconds that blend and features of one request take, whichever ranker scores them. Latency is told
    by `clock`, cost by `cpu`: other work on the machine delays a request, but is not paid for by it. Raises ValueError
    when there is no question.
    """
    if not len(lists):
        raise ValueError("lists: at least one question is expected")
    models = [each.model for each in variants]
    scores = [onnx_scores(model, lists) for model in models]
    worth = [lists.ndcg(each) for each in scores]
    bootstrap = Bootstrap(lists.users, seed=seed)
    singles = run_times(models, lists, 1, _SINGLES, seed=seed, clock=clock) * 1e3
    batches = run_times(models, lists, _BATCH, _BATCHES, seed=seed, clock=clock) * 1e3
    paid = np.median(run_times(models, lists, _BATCH, _BATCHES, seed=seed, clock=cpu), axis=1) / _BATCH
    rows: list[Measured] = []
    for at, variant in enumerate(variants):
        lift = bootstrap.lift(worth[at], worth[0])
        one, many = np.percentile(singles[at], [50, 99]), np.percentile(batches[at], [50, 99])
        seconds = float(paid[at]) + assembly_s
        rows.append(
            Measured(
                name=variant.name,
                size=variant.size,
                p50_ms=float(one[0]),
                p99_ms=float(one[1]),
                batch_p50_ms=float(many[0]),
                batch_p99_ms=float(many[1]),
                throughput=1 / seconds,
                dollars_per_million=dollars_per_million(seconds, price_per_vcpu_hour),
                ndcg_at_10=float(worth[at].mean()),
                loss=Interval(-lift.mean, -lift.high, -lift.low),
                fault="" if np.isfinite(scores[at][lists.present]).all() else "gave a score that is not finite",
            )
        )
    return rows


def dollars_per_million(seconds: float, price_per_vcpu_hour: float) -> float:
    """Of a million requests that take so many seconds of one vCPU each, none of it idle."""
    return seconds * 1e6 / 3600 * price_per_vcpu_hour


def choose(table: Sequence[Measured], floor: float = FLOOR) -> Measured:
    """The cheapest row whose loss of NDCG@10 is at most `floor`; one that saves less than 5 % gives way to an earlier.

    Raises GateFailed naming every row's figures when there is none.
    """
    best: Measured | None = None
    for row in table:
        fits = not row.fault and row.loss.mean <= floor
        if fits and (best is None or row.dollars_per_million < (1 - _WORTH_IT) * best.dollars_per_million):
            best = row
    if best is None:
        figures = ", ".join(f"{row.name} {row.fault or f'loses {row.loss.mean:.2%}'}" for row in table)
        raise GateFailed(f"ranker.floor: no ranker loses at most {floor:.2%} of NDCG@10: {figures}")
    return best


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float):
        return round(value, 6) if np.isfinite(value) else None
    return value
