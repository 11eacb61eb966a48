"""What a CUDA device gives: batches from 1 to 32, recall beside the CPU's, the build, the encoder, the served p99.

    python benchmarks/gpu.py --json gpu.json [--items 4000000] [--vectors V.npy --queries Q.npy] [--snapshots FOLDER]

Needs feedline[gpu,index]; `benchmarks/gpu.sh` installs them and runs the tests, too. Without `--vectors` (float16
[n, d], with `--queries` float32 [q, d]) the vectors are made: a mixture of n / 64 directions, equal ones among them,
called "made" wherever their figures stand. Without `--snapshots` nothing is served. Milliseconds are medians over
rounds of single calls of the service's own retrievers, one caller.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.ann.build import Candidate, build_indexes
from indexer.ann.device import flat_maker
from indexer.ann.truth import exact_truth
from indexer.ann.tune import tune
from indexer.contract.cuda import NoCuda, require_faiss
from indexer.contract.features import Floats
from indexer.contract.vector_file import Half, map_vectors
from indexer.packaged_model import packaged_model
from indexer.settings import AnnSettings
from services.feed.gpu import Gpu
from services.feed.gpu_retrieval import GpuRetriever
from services.feed.retrieval import Nearest, Retriever

K, SEED, DIMENSION, CHUNK = 500, 1, 128, 65_536
BATCHES = (1, 2, 4, 8, 16, 32)
SHARES = (0.01, 0.1, 0.9)
Search = Callable[[Floats], list[Nearest]]


def made(items: int) -> tuple[Half, Floats]:
    """Half float16 [n, d] of length 1, every tenth equal to the one before, and queries: means of four of a kind."""
    rng = np.random.default_rng(SEED)
    centres = rng.standard_normal((max(64, items // 64), DIMENSION), np.float32)
    out = np.empty((items, DIMENSION), np.float16)
    for start in range(0, items, CHUNK):
        count = min(CHUNK, items - start)
        near = centres[rng.integers(0, len(centres), count)] + 0.6 * rng.standard_normal((count, DIMENSION), np.float32)
        near[1::10] = near[0 : count - 1 : 10]
        out[start : start + count] = near / np.linalg.norm(near, axis=1, keepdims=True)
    kinds = centres[rng.integers(0, len(centres), 512)]
    noise = rng.standard_normal((512, 4, DIMENSION), np.float32)
    queries = (kinds[:, None] + 0.6 * noise).mean(axis=1)
    return out, np.asarray(queries / np.linalg.norm(queries, axis=1, keepdims=True), np.float32)


def prepared(options: argparse.Namespace, file: Path) -> Floats:
    """Writes the vectors to `file`, float16; the queries float32 [q, d]."""
    if options.vectors is None:
        vectors, queries = made(options.items)
    else:
        vectors = np.load(options.vectors, mmap_mode="r", allow_pickle=False)[: options.items].astype(np.float16)
        queries = np.load(options.queries, allow_pickle=False)[:512].astype(np.float32)
    np.save(file, vectors)
    return queries


def recall(vectors: Half, queries: Floats, found: list[Nearest], least: Floats) -> float:
    """Share of the K whose exact score is at least the K-th exact one, less 1e-6."""
    hits = sum(
        int(np.count_nonzero(vectors[rows].astype(np.float32) @ query >= wanted - 1e-6))
        for query, (rows, _), wanted in zip(queries, found, least, strict=True)
    )
    return round(hits / (K * len(queries)), 4)


def by_batch(search: Search, queries: Floats) -> dict[str, Any]:
    """p50 and p99 of a call by batch size, queries a second, and what the largest batch gains over single queries."""
    rows: list[dict[str, float]] = []
    search(queries[: max(BATCHES)])
    for size in BATCHES:
        took = []
        for at in range(max(20, 200 // size)):
            chosen = np.arange(at * size, at * size + size) % len(queries)
            begun = time.perf_counter()
            search(queries[chosen])
            took.append(time.perf_counter() - begun)
        p50, p99 = np.percentile(np.array(took) * 1e3, [50, 99])
        rows.append(
            {"batch": size, "p50_ms": round(p50, 3), "p99_ms": round(p99, 3), "qps": round(size / p50 * 1e3, 1)}
        )
    return {"by_batch": rows, "gain": round(rows[-1]["qps"] / rows[0]["qps"], 2)}


def build(vectors: Half, settings: AnnSettings, folder: Path) -> tuple[list[Candidate], float]:
    """The nightly job's own indexes of the vectors, in `folder`, and the seconds."""
    folder.mkdir()
    begun = time.perf_counter()
    candidates = build_indexes(
        vectors,
        np.arange(len(vectors)),
        settings,
        folder,
        typical=np.empty((0, vectors.shape[1]), np.float32),
        threads=os.cpu_count() or 1,
        seed=SEED,
        advance=lambda count: None,
        make_flat=flat_maker(settings),
    )
    return candidates, round(time.perf_counter() - begun, 1)


def retrieval(vectors: Half, queries: Floats, device: int, folder: Path) -> dict[str, Any]:
    """The build; then exact search on the device, the index that a device can hold, and the same by one CPU thread.

    `vectors`: mapped, see `map_vectors`.
    """
    everything = np.ones(len(vectors), np.bool_)
    least = exact_truth(vectors, queries).least
    small = vectors[: max(100_000, len(vectors) // 8)]
    on_cpu = AnnSettings(kinds=("ivf_sq8",))
    on_device = AnnSettings(kinds=("ivf_sq8",), device="cuda", device_id=device)
    smaller = {
        name: build(small, each, folder / name)[1] for name, each in (("cpu_s", on_cpu), ("device_s", on_device))
    }
    all_kinds = build(vectors, AnnSettings(device="cuda", device_id=device), folder / "all")[1]
    candidates, seconds = build(vectors, on_device, folder / "whole")
    tuned = tune(candidates, vectors, queries[:256], on_device, seed=SEED)
    spec = tuned.spec
    cpu = Retriever.load(tuned.file, vectors, index_spec=spec, exact_below=0, threads=1)
    search = _all(cpu, everything)
    out: dict[str, Any] = {
        "build": {
            "kind": spec.kind,
            "device_s": seconds,
            "default_kinds_device_s": all_kinds,
            "smaller": {"items": len(small), **smaller},
        },
        "cpu": {
            "point": f"nprobe {spec.nprobe}, refine {spec.refine:g}",
            "recall_at_500": recall(vectors, queries, search(queries), least),
            **by_batch(search, queries),
        },
    }
    with closing(Gpu.open(device, temp_mb=1024)) as gpu:
        begun = time.perf_counter()
        exact = GpuRetriever.exact(gpu, vectors, slice_bytes=0)
        loaded_s = round(time.perf_counter() - begun, 2)
        copied = GpuRetriever.load(gpu, tuned.file, vectors, index_spec=spec, slice_bytes=0)
        for name, retriever in (("device_flat", exact), ("device_copy", copied)):
            search = _all(retriever, everything)
            out[name] = {"recall_at_500": recall(vectors, queries, search(queries), least), **by_batch(search, queries)}
        out["device_flat"]["load_s"] = loaded_s
        out["device_flat"]["filtered"] = [_filtered(exact, vectors, queries, share) for share in SHARES]
    apart = abs(out["device_copy"]["recall_at_500"] - out["cpu"]["recall_at_500"])
    out["copy_is_the_cpus_within_0.001"] = bool(apart <= 0.001)
    return out


def _all(retriever: Retriever | GpuRetriever, everything: npt.NDArray[np.bool_]) -> Search:
    return lambda queries: retriever.search(queries, everything, K)


def _filtered(retriever: GpuRetriever, vectors: Half, queries: Floats, share: float) -> dict[str, Any]:
    mask = np.random.default_rng(SEED).random(len(vectors)) < share
    some = queries[:64]
    begun = time.perf_counter()
    found = retriever.search(some, mask, K)
    first = time.perf_counter() - begun
    took = []
    for query in some:
        begun = time.perf_counter()
        retriever.search(query[None], mask, K)
        took.append(time.perf_counter() - begun)
    p50, p99 = np.percentile(np.array(took) * 1e3, [50, 99])
    return {
        "share": share,
        "recall_at_500": recall(vectors, some, found, exact_truth(vectors, some, mask=mask).least),
        "first_ms": round(first * 1e3, 1),
        "p50_ms": round(p50, 3),
        "p99_ms": round(p99, 3),
    }


def encoding(model: str) -> dict[str, Any]:
    """Texts a second of a sentence-transformers model on the CPU and on the device, and how alike the vectors are."""
    import torch  # noqa: PLC0415 - the figures of retrieval need none
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    if not torch.cuda.is_available():
        return {"left_out": "the installed torch sees no CUDA device"}
    kinds = ("green tea", "ground coffee", "oat milk", "dish soap", "rye bread", "lamp oil", "cat food", "orange juice")
    texts = [f"{kinds[at % 8]} {at % 97} oz. brand {at % 1013}. {kinds[at // 8 % 8]} aisle" for at in range(20_000)]
    out: dict[str, Any] = {"model": Path(model).name, "texts": len(texts)}
    vectors = {}
    for device, count in (("cpu", 2000), ("cuda", len(texts))):
        encoder = SentenceTransformer(model, device=device, local_files_only=True)
        encoder.encode(texts[:256], show_progress_bar=False)
        begun = time.perf_counter()
        vectors[device] = encoder.encode(
            texts[:count], batch_size=256, show_progress_bar=False, normalize_embeddings=True
        )
        out[f"{device}_per_s"] = round(count / (time.perf_counter() - begun))
    out["least_cosine"] = round(float((vectors["cpu"] * vectors["cuda"][:2000]).sum(axis=1).min()), 5)
    return out


def served(snapshots: Path, steps: str) -> list[dict[str, Any]]:
    """`feedline bench load` over the snapshots, cache off, by where vectors are searched and models run."""
    rows = []
    for retrieval_on, scoring_on in (("cpu", "cpu"), ("cuda", "cpu"), ("cuda", "cuda")):
        asked = [
            *(sys.executable, "-m", "services.cli", "bench", "load", "--json", "--snapshots", str(snapshots)),
            *("--steps", steps, "--set", "cache.enabled=false"),
            *("--set", f"retrieval.device={retrieval_on}", "--set", f"scoring.device={scoring_on}"),
        ]
        done = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=180)
        if done.returncode:
            raise SystemExit(f"{shlex.join(asked)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        for step in json.loads(done.stdout)["steps"]:
            latency = step["latency_ms"]
            rows.append(
                {
                    "retrieval": retrieval_on,
                    "scoring": scoring_on,
                    "offered_qps": step["offered_qps"],
                    "goodput_qps": step["goodput_qps"],
                    "p50_ms": latency["p50"],
                    "p99_ms": latency["p99"],
                    "non_ok": step["non_ok"],
                }
            )
    return rows


def machine() -> dict[str, Any]:
    """The device, its driver, the CPU's cores and the versions."""
    seen = shutil.which("nvidia-smi")
    asked = [seen or "nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    names = ("faiss-gpu", "onnxruntime-gpu", "torch", "numpy")
    return {
        "devices": subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]
        if seen
        else [],
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in names},
        "command": shlex.join(["python", *sys.argv]),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def table(result: dict[str, Any]) -> str:
    """In Markdown."""
    found = result["retrieval"]
    lines = [f"| search | recall@500 | {' | '.join(f'batch {size}' for size in BATCHES)} | gain |", "| --- " * 9 + "|"]
    for name in ("cpu", "device_copy", "device_flat"):
        row = found[name]
        times = " | ".join(f"{each['p50_ms']} ms" for each in row["by_batch"])
        lines.append(f"| {name} | {row['recall_at_500']} | {times} | {row['gain']} |")
    lines += ["", f"build: {json.dumps(found['build'])}", f"filters: {json.dumps(found['device_flat']['filtered'])}"]
    lines += [f"encoder: {json.dumps(result['encoder'])}", *(json.dumps(row) for row in result["served"])]
    return "\n".join(lines)


def main() -> None:
    """Measures all of it, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=4_000_000)
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--queries", type=Path)
    parser.add_argument("--snapshots", type=Path)
    parser.add_argument("--steps", default="50:5,200:5,500:5", help="of `feedline bench load`")
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    try:
        require_faiss(options.device)
    except NoCuda as error:
        raise SystemExit(f"benchmarks/gpu.py: {error}") from error
    model = packaged_model()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "vectors.npy")
        queries = prepared(options, file)
        vectors = map_vectors(file)
        found = retrieval(vectors, queries, options.device, Path(folder))
        result = {**machine(), "items": len(vectors), "vectors": str(options.vectors or "made"), "retrieval": found}
    result["encoder"] = encoding(model) if model else {"left_out": "needs feedline[demo], which holds a model"}
    result["served"] = served(options.snapshots, options.steps) if options.snapshots else []
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
