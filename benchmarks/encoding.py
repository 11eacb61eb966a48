"""Every kind of content encoder beside plain `SentenceTransformer.encode`, and the encode step of three nights.

    HF_HUB_OFFLINE=1 python benchmarks/encoding.py [--texts 2000] [--step 1000000] [--kind static] [--model FOLDER]

Texts are those of the demo's catalogue (Complete Journey), `--texts` distinct ones in its order. Plain is what a script
would do: fp32, batches of 32, as many threads as torch takes. The others are the encoder of a build: sorted by length,
padded by batch. Rounds alternate, and ratios are medians over them. Encoding each distinct content once is a gain of
its own: `dedupe` is items by distinct texts, and is in no ratio. `neighbours_at_10`: share of the ten nearest texts in
fp32 that are among the ten nearest here.

`--step N`: N distinct texts (those of the demo with numbers behind them) through the step as a build runs it: the first
night, a night with 2 % of them changed, a night with none. Distilling a static model, once for good, is in none of the
sums. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt

from indexer.encoder import Encoder
from indexer.encoding import encode_items
from indexer.packaged_model import require_packaged_model
from indexer.progress import Silent, Stages
from indexer.settings import EncoderSettings
from indexer.text import CONTENT_TEXT
from indexer.workspace import Workspace, workspace
from services.demo.dataset import prepare

Floats = npt.NDArray[np.float32]
KINDS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "int8": {"precision": "int8"},
    "static": {"kind": "static"},
}
ROUNDS = 3
CHANGED = 0.02
SEED = 20_261_201


def demo_texts(folder: Path) -> list[str]:
    """The text of each product, in the order of the catalogue."""
    with duckdb.connect() as sql:
        sql.execute(CONTENT_TEXT)
        sql.read_parquet(str(prepare(folder).catalogue)).create_view("products")
        rows = sql.execute("select content_text(title, category, brand, description) from products").fetchall()
    return [text for (text,) in rows]


def timed(work: Callable[[], Floats]) -> tuple[Floats, float, float]:
    """What it gave, wall seconds, CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - wall, time.process_time() - cpu


def compare(model: str, texts: list[str], threads: int, static: Path) -> dict[str, Any]:
    """A row by kind: texts a second, ratios to plain, agreement with it."""
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415 - not for the step alone

    plain = SentenceTransformer(model, device="cpu")
    order = sorted(range(len(texts)), key=lambda at: -len(texts[at].encode()))
    ordered = [texts[at] for at in order]
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in ("plain", *KINDS)}
    vectors: dict[str, Floats] = {}
    encoders = {
        name: Encoder(EncoderSettings.model_validate({"model": model, "device": "cpu", **more}), threads, static)
        for name, more in KINDS.items()
    }
    for encoder in encoders.values():
        encoder.encode(ordered[:200])
    for _ in range(ROUNDS):
        vectors["plain"], *took = timed(lambda: plain.encode(texts, normalize_embeddings=True))
        seconds["plain"].append((took[0], took[1]))
        for name, encoder in encoders.items():
            found, *took = timed(lambda encoder=encoder: encoder.encode(ordered).astype(np.float32))  # type: ignore[misc]
            seconds[name].append((took[0], took[1]))
            vectors[name] = np.empty_like(found)
            vectors[name][order] = found
    for encoder in encoders.values():
        encoder.close()
    return {name: row(name, len(texts), seconds, vectors) for name in seconds}


def row(
    name: str, count: int, seconds: dict[str, list[tuple[float, float]]], vectors: dict[str, Floats]
) -> dict[str, Any]:
    """The figures of one kind."""
    took, plain = np.array(seconds[name]), np.array(seconds["plain"])
    figures: dict[str, Any] = {
        "texts_per_s": round(float(count / np.median(took[:, 0])), 1),
        "texts_per_cpu_s": round(float(count / np.median(took[:, 1])), 1),
        "wall_ratio": round(float(np.median(plain[:, 0] / took[:, 0])), 2),
        "cpu_ratio": round(float(np.median(plain[:, 1] / took[:, 1])), 2),
        "neighbours_at_10": round(overlap(vectors["plain"], vectors[name]), 4),
    }
    if vectors[name].shape == vectors["plain"].shape:
        cosines = (vectors[name] * vectors["plain"]).sum(axis=1)
        figures |= {"cosine_mean": round(float(cosines.mean()), 5), "cosine_min": round(float(cosines.min()), 5)}
    return figures


def overlap(one: Floats, other: Floats) -> float:
    """Share of each text's ten nearest by `one` that are among its ten nearest by `other`."""
    nearest = []
    for each in (one, other):
        likeness = each @ each.T
        np.fill_diagonal(likeness, -np.inf)
        nearest.append(np.argpartition(-likeness, 10, axis=1)[:, :10])
    return float(np.mean([len(np.intersect1d(a, b)) / 10 for a, b in zip(*nearest, strict=True)]))


def nights(settings: EncoderSettings, texts: list[str], count: int, threads: int, root: Path) -> list[dict[str, Any]]:
    """Seconds by stage of the first night, one with 2 % changed, one with nothing changed."""
    rows: list[dict[str, Any]] = []
    for name, changed in (("first", 0.0), ("2 % changed", CHANGED), ("nothing changed", CHANGED)):
        with workspace(root, threads=threads, memory_limit_mb=2048) as work:
            fill(work, texts, count, changed)
            stages = Stages(Silent())
            cpu = time.process_time()
            encoded = encode_items(
                work, stages, settings, root / "vectors", work.folder / "content.npy",
                items=count, texts=count, threads=threads,
            )  # fmt: skip
            took = {stage: seconds for stage, seconds in stages.seconds.items() if stage != "distil"}
            rows.append(
                {
                    "night": name,
                    "encoded": encoded.encoded,
                    "seconds": stages.seconds,
                    "step_s": round(sum(took.values()), 2),
                    "step_without_gather_s": round(sum(took.values()) - took["gather"], 2),
                    "cpu_s": round(time.process_time() - cpu, 1),
                    "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                }
            )
    for each in rows[1:]:
        for figure in ("step_s", "step_without_gather_s"):
            each[f"{figure}_share"] = round(each[figure] / rows[0][figure], 4)
    return rows


def fill(work: Workspace, texts: list[str], count: int, changed: float) -> None:
    """The tables of a catalogue of `count` items with texts of their own, of which a share has changed."""
    work.sql.execute(CONTENT_TEXT)
    work.sql.execute("create table given as select unnest($1::varchar[]) as text", [texts])
    work.sql.execute("create table numbered as select row_number() over () - 1 as number, text from given")
    work.sql.execute(
        "create table texts as select cast(range as integer) as text_no, text, null::varchar[] as images,"
        " content_key(text, null) as content from (select range, text || ', no. ' || range ||"
        " case when hash(range) % 10000 < $2 then ' new' else '' end as text"
        " from range($1) join numbered on number = range % $3)",
        [count, round(changed * 10_000), len(texts)],
    )
    work.sql.execute("create table items as select text_no as row, text_no from texts")


def main() -> None:
    """Prints JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000, help="distinct texts to compare kinds by; 0: none")
    parser.add_argument("--step", type=int, default=0, help="distinct texts of the three nights; 0: none")
    parser.add_argument("--kind", choices=list(KINDS), default="static", help="of the three nights")
    parser.add_argument("--model", default=None, help="a folder")
    arguments = parser.parse_args()
    model, threads = arguments.model or require_packaged_model(), len(os.sched_getaffinity(0))
    report: dict[str, Any] = {
        "machine": platform.processor() or platform.machine(),
        "threads": threads,
        "versions": {name: version(name) for name in ("torch", "sentence-transformers", "onnxruntime", "tokenizers")},
    }
    with TemporaryDirectory(prefix="feedline-encoding-") as folder:
        root = Path(folder)
        every = demo_texts(root / "demo")
        texts = list(dict.fromkeys(every))
        report["dedupe"] = round(len(every) / len(texts), 2)
        if arguments.texts:
            chosen = np.sort(np.random.default_rng(SEED).permutation(len(texts))[: arguments.texts])
            report["kinds"] = compare(model, [texts[at] for at in chosen], threads, root / "vectors" / "static")
        if arguments.step:
            settings = EncoderSettings.model_validate({"model": model, "device": "cpu", **KINDS[arguments.kind]})
            report["nights"] = nights(settings, texts, arguments.step, threads, root)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
