"""`feedline demo`: data, snapshot, service, shopper, page: one line from an empty folder to a browsable feed."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.contract.manifest import REPORT
from indexer.contract.snapshot import current_id
from services.client import FeedClient
from services.demo import shopper
from services.demo.children import Service, run_command, serving
from services.demo.dataset import LICENCE, Dataset, prepare
from services.demo.story import Story, Titles, open_console
from services.errors import StartError

LEARNING = (
    "# Smaller than the defaults, so that a demo need not wait a quarter of an hour.",
    "index.learn.train_questions = 3000",
    "index.learn.validate_questions = 1000",
    "index.learn.evaluate_questions = 2000",
    'index.learn.teachers = ["trees"]',
    "index.learn.towers.epochs = 2",
    "index.learn.towers.places = 20",
    "index.learn.towers.negatives = 1024",
    'index.ranker.variants = ["fp32", "fp16", "int8"]',
)
_WELL_KNOWN = (50051, 8080)
_INTERRUPTED = 130


@dataclass(frozen=True)
class Places:
    """Everything that the demo writes lies in the folder `data`; a second run finds it there. `model` encodes."""

    data: Path
    model: str

    @property
    def snapshots(self) -> Path:
        """Where the job publishes."""
        return self.data / "snapshots"

    @property
    def state(self) -> Path:
        """Where the embedded Valkey keeps its data."""
        return self.data / "valkey"

    @property
    def config(self) -> Path:
        """The settings that the demo writes, for the job and the service."""
        return self.data / "demo.toml"

    @property
    def log(self) -> Path:
        """What the service says."""
        return self.data / "serve.log"


def main(*, json_output: bool, keep: bool, data: Path, model: str) -> int:
    """The exit code: 0 when every step showed what it claims, 1 when one did not, 130 after Ctrl-C.

    Raises StartError when something that the demo needs is not there.
    """
    story = Story(open_console(to_stderr=json_output))
    try:
        return asyncio.run(_interruptible(story, Places(data.resolve(), model), json_output=json_output, keep=keep))
    except (KeyboardInterrupt, asyncio.CancelledError):
        story.say("\ninterrupted; the demo's processes are ended")
        return _INTERRUPTED


async def _interruptible(story: Story, places: Places, *, json_output: bool, keep: bool) -> int:
    """SIGTERM ends the demo as Ctrl-C does: its processes with it."""
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    held = await _demo(story, places)
    if json_output:
        json.dump({"licence": LICENCE, **story.document()}, sys.stdout, indent=1, allow_nan=False)
        sys.stdout.write("\n")
        sys.stdout.flush()
    story.say("")
    if not held:
        failed = ", ".join(step.name for step in story.steps if not step.held)
        story.say(f"NOT EVERYTHING WAS SHOWN: {failed}. What the service said: {places.log}")
    if keep and held:
        await _keep(story, places)
    elif held:
        story.say("Everything was shown. To look around in the browser: make demo KEEP=1 (feedline demo --keep)")
    return 0 if held else 1


async def _demo(story: Story, places: Places) -> bool:
    """All steps; whether each showed what it claims."""
    dataset = await _data(story, places)
    if not await _snapshot(story, places, dataset):
        return False
    story.titles = Titles(dataset)
    begun = time.monotonic()
    async with serving(places.config, places.log, grpc_port=0, console_port=0) as service:
        await _ready(story, service, time.monotonic() - begun)
        ann = shopper.Shopper("Ann")
        async with FeedClient(service.target) as client:
            popular = await shopper.cold_start(story, client, ann)
            page = await shopper.clicks(story, client, ann, popular)
            await shopper.same_question(story, client, ann, page)
            await shopper.redis_killed(story, client, ann, places.state)
        await shopper.drained(story, service, ann, popular)
    return all(step.held for step in story.steps)


async def _data(story: Story, places: Places) -> Dataset:
    why = "A real catalogue with its quirks, not a toy: the demo stands on the same files as any shop would bring."
    with story.step("Catalogue and events", why) as step:
        dataset = await asyncio.to_thread(prepare, places.data)
        how = "converted" if dataset.converted else "found as the last run left them"
        story.say(f"    {dataset.items:,} products, {dataset.purchases:,} purchases, {how}: {places.data}")
        story.say(f"    {dataset.dropped:,} rows that sold nothing (quantity <= 0) are left out")
        story.say(f"    {LICENCE}")
        story.say("    SIMULATED: the data has no regions; its stores are spread over four by a hash of their id.")
        story.say("    Prices are medians over the whole year: fine for serving, a small leak in an evaluation.")
        step.facts = {"items": dataset.items, "purchases": dataset.purchases, "converted": dataset.converted}
        story.claim(step, "both files are whole", dataset.items > 0 and dataset.purchases > 0)
    return dataset


async def _snapshot(story: Story, places: Places, dataset: Dataset) -> bool:
    why = (
        "The nightly job makes one immutable snapshot. Each distinct text is encoded once and kept, and models are "
        "learned anew only when something changed: the first run takes about four minutes, the next one seconds."
    )
    with story.step("Snapshot: feedline index build", why) as step:
        places.config.write_text(_settings(places), encoding="utf-8")
        arguments = (
            "index", "build", "--catalogue", str(dataset.catalogue), "--events", str(dataset.events),
            "--out", str(places.snapshots), "--config", str(places.config),
        )  # fmt: skip
        code = await run_command(arguments, out=sys.stderr if story.console.stderr else sys.stdout)
        story.claim(step, "the build passed its gates and published", code == 0)
        if code == 0:
            report = _report(places.snapshots)
            step.facts = {name: report[name] for name in ("snapshot", "items", "distinct_texts", "encoded", "reused")}
            once = report["encoded"] + report["reused"] == report["distinct_texts"]
            story.claim(
                step,
                f"{report['items']:,} items, {report['distinct_texts']:,} distinct texts: "
                f"{report['encoded']:,} encoded now, {report['reused']:,} reused",
                once and report["items"] == dataset.items,
            )
    return step.held


async def _ready(story: Story, service: Service, start_s: float) -> None:
    why = "gRPC, the page and an embedded Valkey in one command. Ready only after the snapshot is verified and warmed."
    with story.step("Service: feedline serve", why) as step:
        with await asyncio.to_thread(urllib.request.urlopen, f"{service.page}readyz", timeout=5) as answer:
            state: dict[str, Any] = json.load(answer)
        step.facts = {
            "grpc_port": service.grpc_port,
            "console_port": service.console_port,
            "ready_after_s": round(start_s, 2),
            **state,
        }
        story.say(f"    gRPC on {service.target}, page on {service.page}, snapshot {state['snapshot_id']}")
        story.claim(
            step, f"ready after {start_s:.1f} s, with a whole snapshot", state["ready"] and not state["degraded"]
        )


async def _keep(story: Story, places: Places) -> None:
    """Serves until Ctrl-C, on the well-known ports where they are free."""
    grpc_port, console_port = (port if _free(port) else 0 for port in _WELL_KNOWN)
    async with serving(places.config, places.log, grpc_port=grpc_port, console_port=console_port) as service:
        story.say(f"Open {service.page} : pick items, watch the feed follow. gRPC is on {service.target}.")
        story.say("Ctrl-C ends it.")
        with suppress(asyncio.CancelledError):
            await service.ended()


def _settings(places: Places) -> str:
    """TOML for the job and the service. A JSON string is a TOML string."""
    return "\n".join(
        (
            "# Written by `feedline demo`.",
            f"snapshots.folder = {json.dumps(str(places.snapshots))}",
            f"state.folder = {json.dumps(str(places.state))}",
            f"index.vector_store = {json.dumps(str(places.data / 'vectors'))}",
            f"index.encoder.model = {json.dumps(places.model)}",
            *LEARNING,
            "",
        )
    )


def _report(snapshots: Path) -> dict[str, Any]:
    name = current_id(snapshots)
    if name is None:
        raise StartError(f"{snapshots}: the build published no snapshot")
    report: dict[str, Any] = json.loads((snapshots / name / REPORT).read_text(encoding="utf-8"))
    return report


def _free(port: int) -> bool:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
