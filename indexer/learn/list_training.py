"""Trains a network that scores lists: multi-positive softmax on labels, on a teacher's soft scores, or on both.

Q questions, C candidates, F features. Seeded; the best epoch by NDCG@10 of later questions is kept.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from indexer.contract.candidates import CANDIDATE_MASK, INPUTS
from indexer.learn.lists import Lists, Scores

Network = TypeVar("Network", bound=nn.Module)
_MASKED = -1e4
_TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
_CHUNK = 512


@dataclass(frozen=True, slots=True)
class ListSettings:
    """How a network is trained. `epochs`: at most; fewer when NDCG@10 does not rise for `patience` epochs.

    `rate_decay`: of the learning rate, by epoch. `soft`: weight of the teacher's part of the loss, 0..1.
    """

    epochs: int = 8
    patience: int = 2
    batch: int = 64
    rate: float = 2e-3
    rate_decay: float = 0.75
    weight_decay: float = 1e-4
    soft: float = 0.5
    threads: int = 1
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Trained(Generic[Network]):
    """A network, the number of epochs after which it was best, and NDCG@10 after each that was run and checked."""

    module: Network
    epochs: int
    figures: tuple[float, ...]


def train_on_lists(
    build: Callable[[Tensor, Tensor], Network],
    lists: Lists,
    settings: ListSettings,
    *,
    check: Lists | None = None,
    soft: Scores | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> Trained[Network]:
    """`build` makes the network from mean and deviation of the features, float32 [F] each.

    `soft` float32 [Q, C]: what each candidate should get of the whole, see `soft_targets`. Without `check` all epochs
    are run. Questions that teach nothing are left out. Raises ValueError when none is left, or weights are not finite.
    """
    torch.manual_seed(settings.seed)
    torch.set_num_threads(settings.threads)
    random = np.random.default_rng(settings.seed)
    useful = np.flatnonzero(lists.answerable() if soft is None else lists.present.any(axis=1))
    if not len(useful):
        raise ValueError("lists: no question has a target among its candidates")
    module = build(*_moments(lists))
    optimiser = torch.optim.AdamW(module.parameters(), lr=settings.rate, weight_decay=settings.weight_decay)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, settings.rate_decay)
    wanted = _wanted(lists, soft, settings.soft)
    best: tuple[float, int, dict[str, Tensor]] | None = None
    figures: list[float] = []
    for number in range(1, settings.epochs + 1):
        module.train()
        order = random.permutation(useful)
        for first in range(0, len(order), settings.batch):
            part = order[first : first + settings.batch]
            optimiser.zero_grad()
            loss = -(torch.from_numpy(wanted[part]) * _log_shares(module, lists.take(part))).sum(dim=1).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            advance(len(part))
        schedule.step()
        if check is None:
            continue
        figures.append(float(check.ndcg(score(module, check)).mean()))
        if best is None or figures[-1] > best[0]:
            best = figures[-1], number, copy.deepcopy(module.state_dict())
        elif number - best[1] >= settings.patience:
            break
    if best is not None:
        module.load_state_dict(best[2])
    if not all(bool(torch.isfinite(weights).all()) for weights in module.parameters()):
        raise ValueError("the ranker's weights are not finite")
    return Trained(module.eval(), settings.epochs if best is None else best[1], tuple(figures))


def score(module: nn.Module, lists: Lists) -> Scores:
    """The network's scores, float32 [Q, C]."""
    module.eval()
    out = np.zeros(lists.rows.shape, np.float32)
    with torch.inference_mode():
        for first in range(0, len(lists), _CHUNK):
            part = np.arange(first, min(first + _CHUNK, len(lists)))
            out[part] = module(*tensors(lists.take(part))).numpy()
    return out


def tensors(lists: Lists) -> tuple[Tensor, ...]:
    """The same as `ranker_inputs`, as tensors, in its order."""
    return tuple(map(torch.from_numpy, ranker_inputs(lists).values()))


def ranker_inputs(lists: Lists) -> dict[str, npt.NDArray[np.generic]]:
    """What `candidates.ranker_tensors` gives of the questions: INPUTS, then CANDIDATE_MASK."""
    longest = max(1, int(lists.context_mask.sum(axis=1).max(initial=1)))
    arrays: dict[str, npt.NDArray[np.generic]] = {name: getattr(lists, name) for name in INPUTS}
    cut = {name: each[:, :longest] if name.startswith("context") else each for name, each in arrays.items()}
    wide = {
        name: each.astype(np.float32) if each.dtype == np.float16 else np.ascontiguousarray(each)
        for name, each in cut.items()
    }
    return {**wide, CANDIDATE_MASK: np.ascontiguousarray(lists.present)}


def soft_targets(scores: Scores, lists: Lists) -> Scores:
    """float32 [Q, C], summing to 1 over the candidates: softmax of standardised scores, at the temperature at which
    they tell the labels best."""
    level = standardised(scores, lists)

    def shares(temperature: float) -> Scores:
        raised = np.exp((level - level.max(axis=1, keepdims=True)) / temperature) * lists.present
        return np.asarray(raised / np.maximum(raised.sum(axis=1, keepdims=True), 1e-12), np.float32)

    labels = _wanted(lists, None, 0.0)
    return max((shares(one) for one in _TEMPERATURES), key=lambda each: float((labels * np.log(each + 1e-9)).sum()))


def standardised(scores: Scores, lists: Lists) -> Scores:
    """float32 [Q, C]: less their mean, over their deviation, question by question; 0 in the padding."""
    count = np.maximum(1, lists.present.sum(axis=1, keepdims=True))
    centred = np.where(lists.present, scores, 0.0)
    centred = np.where(lists.present, centred - centred.sum(axis=1, keepdims=True) / count, 0.0)
    deviation = np.sqrt((centred**2).sum(axis=1, keepdims=True) / count)
    return np.asarray(centred / np.maximum(deviation, 1e-6), np.float32)


def _log_shares(module: nn.Module, lists: Lists) -> Tensor:
    inputs = tensors(lists)
    scores = module(*inputs).masked_fill(~inputs[-1], _MASKED)
    return torch.log_softmax(scores, dim=1)


def _wanted(lists: Lists, soft: Scores | None, weight: float) -> Scores:
    """float32 [Q, C]: what the softmax is to give."""
    positive = lists.positive.astype(np.float32)
    labels = positive / np.maximum(1.0, positive.sum(axis=1, keepdims=True))
    if soft is None:
        return np.asarray(labels, np.float32)
    return np.asarray(np.where(lists.answerable()[:, None], (1 - weight) * labels + weight * soft, soft), np.float32)


def _moments(lists: Lists) -> tuple[Tensor, Tensor]:
    known = lists.features[lists.present].astype(np.float64)
    scale = np.maximum(known.std(axis=0), 1e-3)
    return torch.from_numpy(known.mean(axis=0).astype(np.float32)), torch.from_numpy(scale.astype(np.float32))
