"""Trains the towers: sampled softmax with logQ correction, early stopping on later sessions, seeded.

B questions, N places, T targets, C candidates. An item that was never sold is no candidate: not a negative either.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import embedding

from indexer.contract.items import Rows
from indexer.learn.interactions import Interactions
from indexer.learn.svd import embed, ppmi
from indexer.learn.tower_batches import Batch, Streams, epoch
from indexer.learn.towers import DIMENSION, ItemTower, SessionTower
from indexer.neighbours import paired

Vectors = npt.NDArray[np.float16]
Places = npt.NDArray[np.int64]


_STEP = 1024
"""Arrays of a training step are of few lengths, multiples of this: free memory of other lengths is not used again."""


@dataclass(frozen=True, slots=True)
class TowerSettings:
    """How the towers are trained. `epochs`: at most; fewer when the validation loss does not fall."""

    places: int = 50
    targets: int = 8
    batch: int = 512
    negatives: int = 2048
    rate: float = 2e-3
    rate_decay: float = 0.6
    """Of the learning rate, by epoch, in small steps."""
    epochs: int = 6
    patience: int = 1
    sessions: int | None = None
    """That are asked about in an epoch, the newest; all sessions are contexts, counts and co-occurrence."""
    id_events: int = 5
    """Of an item with an id embedding, at least; `ids` such items at most, those with the most events."""
    ids: int = 1_000_000
    id_dropout: float = 0.1
    longest_session: int = 300
    pairs: int | None = 100_000_000
    """Of items in sessions, the newest, that the id embeddings begin with; see `indexer.neighbours.paired`."""
    device: str = "cpu"
    threads: int = 1
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Towers:
    """Trained towers, on the CPU wherever they were trained; `slots` int64 [n]: row of the id embedding of each item,
    0 without one."""

    item: ItemTower
    session: SessionTower
    slots: Places
    epochs: int
    """Epochs after which they were best."""
    losses: tuple[float, ...]
    """Validation loss after each epoch that was run; empty when there was none."""


class Trainer:
    """The towers in training: one log, one set of candidates."""

    def __init__(self, log: Interactions, content: Vectors, settings: TowerSettings) -> None:
        torch.manual_seed(settings.seed)
        torch.set_num_threads(settings.threads)
        self.settings = settings
        self.random = np.random.default_rng(settings.seed)
        self.device = torch.device(settings.device)
        self.content = content
        self.streams = Streams(log)
        counts = np.bincount(log.rows, minlength=log.n_items)
        with_id = _with_id(counts, settings)
        self.slots: Places = np.zeros(log.n_items, np.int64)
        self.slots[with_id] = 1 + np.arange(len(with_id))
        asked = len(self.streams.usable) if settings.sessions is None else settings.sessions
        self.asked: Places = self.streams.usable[max(0, len(self.streams.usable) - asked) :]
        self.sold: Rows = np.flatnonzero(counts).astype(np.int32)
        self.target_share = (counts / max(1, counts.sum())).astype(np.float32)
        self.negative_share = counts**0.75 / max(1.0, float((counts**0.75).sum()))
        self._drawn_up_to = np.cumsum(self.negative_share[self.sold])
        start = _start(log, counts, with_id, settings)
        self.item = ItemTower(content.shape[1], torch.from_numpy(start)).to(self.device)
        self.session = SessionTower(settings.places).to(self.device)
        dense = [*self.session.parameters(), *self.item.content.parameters()]
        self.optimisers = [
            torch.optim.Adam(dense, lr=settings.rate),
            torch.optim.SparseAdam(list(self.item.ids.parameters()), lr=settings.rate),
        ]
        self._decay = settings.rate_decay ** (1 / max(1, math.ceil(len(self.asked) / settings.batch)))

    def loss(self, batch: Batch, *, learning: bool) -> Tensor:
        """Mean over questions of the mean over targets of -log softmax over the candidates; never-sold left out."""
        candidates, correction = self.candidates(batch)
        correction = np.pad(correction, (0, -len(candidates) % _STEP), constant_values=np.inf)
        candidates = _padded(candidates)
        rows, inverse = np.unique(np.concatenate([candidates, batch.rows.ravel()]), return_inverse=True)
        vectors = self.item_vectors(_padded(rows), dropout=self.settings.id_dropout if learning else 0.0)
        places = self._tensor(inverse)
        context = embedding(places[len(candidates) :].view(batch.rows.shape), vectors)
        query = self.session(context, self._tensor(batch.types).long(), self._tensor(batch.mask))
        logits = query @ embedding(places[: len(candidates)], vectors).T - self._tensor(correction)
        known = (batch.targets >= 0) & (self.target_share[batch.targets] > 0)
        at = self._tensor(np.searchsorted(candidates, np.where(known, batch.targets, candidates[0])))
        share = self._tensor((known / np.maximum(1, known.sum(axis=1, keepdims=True))).astype(np.float32))
        likelihood = (share * torch.log_softmax(logits, dim=1).gather(1, at)).sum(dim=1)
        return -likelihood.sum() / max(1, int(known.any(axis=1).sum()))

    def step(self, batch: Batch) -> float:
        """One step of the optimisers; the loss before it."""
        for optimiser in self.optimisers:
            optimiser.zero_grad()
        loss = self.loss(batch, learning=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimiser in self.optimisers:
            optimiser.step()
            for group in optimiser.param_groups:
                group["lr"] *= self._decay
        return float(loss.detach())

    def item_vectors(self, rows: npt.NDArray[np.integer], *, dropout: float = 0.0) -> Tensor:
        """float32 [len(rows), d]; with `dropout` some go without their id, so that content learns to stand alone."""
        slots = self.slots[rows]
        if dropout:
            slots = np.where(self.random.random(len(rows)) < dropout, 0, slots)
        content = self._tensor(self.content[rows]).float()
        return torch.as_tensor(self.item(content, self._tensor(slots)))

    def candidates(self, batch: Batch) -> tuple[Rows, npt.NDArray[np.float32]]:
        """Sorted distinct rows [C] with ln of their chance to be among the candidates [C]."""
        if len(self.sold) <= 2 * self.settings.negatives:
            return self.sold, np.zeros(len(self.sold), np.float32)
        targets = batch.targets[(batch.targets >= 0) & (self.target_share[batch.targets] > 0)]
        dice = self.random.random(self.settings.negatives) * self._drawn_up_to[-1]
        drawn = self.sold[np.minimum(np.searchsorted(self._drawn_up_to, dice, side="right"), len(self.sold) - 1)]
        rows = np.union1d(targets, drawn)
        expected = len(targets) * self.target_share[rows] + self.settings.negatives * self.negative_share[rows]
        return rows, np.log(-np.expm1(-expected)).astype(np.float32)

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def train(
    log: Interactions,
    content: Vectors,
    settings: TowerSettings,
    *,
    validation: Callable[[Trainer], float] | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Towers:
    """Towers from the sessions of `log` and the content vectors float16 [n, D] (may be memory-mapped).

    `validation` gives the loss on later sessions: training stops when it has not fallen for `patience` epochs, and
    the best towers are kept; without it all epochs are run. `advance` is told how many questions are done.
    """
    trainer = Trainer(log, content, settings)
    best: tuple[float, int, dict[str, Tensor], dict[str, Tensor]] | None = None
    losses: list[float] = []
    for number in range(1, settings.epochs + 1):
        for sessions in epoch(trainer.asked, settings.batch, trainer.random):
            trainer.step(trainer.streams.batch(sessions, settings.places, settings.targets, trainer.random))
            advance(len(sessions))
        if validation is None:
            continue
        losses.append(validation(trainer))
        if best is None or losses[-1] < best[0]:
            state = copy.deepcopy(trainer.item.state_dict()), copy.deepcopy(trainer.session.state_dict())
            best = (losses[-1], number, *state)
        elif number - best[1] >= settings.patience:
            break
    if best is not None:
        trainer.item.load_state_dict(best[2])
        trainer.session.load_state_dict(best[3])
    done = settings.epochs if best is None else best[1]
    return Towers(trainer.item.cpu().eval(), trainer.session.cpu().eval(), trainer.slots, done, tuple(losses))


def later_loss(
    log: Interactions, start: float, stop: float, settings: TowerSettings, *, limit: int = 2048
) -> Callable[[Trainer], float]:
    """For `train`: the loss on at most `limit` sessions that begin in [start, stop), days; the same ones each time."""
    random = np.random.default_rng(settings.seed)
    streams = Streams(log)
    inside = (log.begun[streams.usable] >= start) & (log.begun[streams.usable] < stop)
    sessions = random.permutation(streams.usable[inside])[:limit]
    batches = [
        streams.batch(part, settings.places, settings.targets, random)
        for part in epoch(sessions, settings.batch, random)
    ]

    def loss(trainer: Trainer) -> float:
        with torch.inference_mode():
            losses = [float(trainer.loss(batch, learning=False)) * len(batch.rows) for batch in batches]
        return sum(losses) / max(1, sum(len(batch.rows) for batch in batches))

    return loss


def _padded(rows: Rows) -> Rows:
    """Up to a multiple of _STEP rows, by the last one."""
    return np.pad(rows, (0, -len(rows) % _STEP), mode="edge")


def _with_id(counts: npt.NDArray[np.int64], settings: TowerSettings) -> Places:
    """Ascending rows of the items with an id embedding; of equal ones the first."""
    often = np.flatnonzero(counts >= settings.id_events)
    return np.sort(often[np.argsort(-counts[often], kind="stable")[: settings.ids]])


def _start(
    log: Interactions, counts: npt.NDArray[np.int64], with_id: Places, settings: TowerSettings
) -> npt.NDArray[np.float32]:
    """float32 [m + 1, d]: SVD of PPMI, of length 1, then the logarithm of the count about its mean as the bias."""
    start = np.zeros((len(with_id) + 1, DIMENSION), np.float32)
    if len(with_id) == 0:
        return start
    sessions = log.matrix()[:, with_id].tocsr()
    used = paired(sessions, longest=settings.longest_session, pairs=settings.pairs)
    ids = embed(ppmi(used), DIMENSION - 1, seed=settings.seed, threads=settings.threads)
    start[1:, :-1] = ids / np.maximum(np.linalg.norm(ids, axis=1, keepdims=True), 1e-6)
    start[1:, -1] = np.log(counts[with_id]) - np.log(counts[with_id]).mean()
    return start
