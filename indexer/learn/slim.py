"""Students made smaller or coarser, and trained for it: what is left learns to make up for what is lost."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from indexer.learn.list_training import ListSettings, tensors, train_on_lists
from indexer.learn.lists import Lists, Scores
from indexer.learn.student import Student

_WEIGHT_BITS = 64
"""Steps of a weight either way: 7 bits, as `quantise.int8` leaves them."""
_SAMPLE = 256
_ROUNDED, _PRUNED = 0.03, 0.3
"""Shares of the learning rate for fine-tuning: little is lost by rounding, and more would learn the lists by heart."""


def pruned(student: Student, lists: Lists, share: float, settings: ListSettings, soft: Scores | None) -> Student:
    """A student with `share` of the hidden units and of the attention heads, fine-tuned for an epoch.

    Units go by the product of the norms of their weights in and out (structured pruning by magnitude); heads by the
    norm of the weights of their columns, times the deviation of these on `lists`.
    """
    places = student.places
    first, second, last = (student.deep[at] for at in (0, 3, 5))
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    assert isinstance(last, nn.Linear)
    heads = student.attention.sharpness.shape[0]
    plain = first.in_features - student.attention.columns
    with torch.no_grad():
        worth = _spread(student, lists) * torch.cat([first.weight, student.plain.weight])[:, plain:].norm(dim=0)
        kept = _best(worth.view(2, heads).norm(dim=0), share)
        inner = _best(first.weight.norm(dim=1) * second.weight.norm(dim=0), share)
        outer = _best(second.weight.norm(dim=1) * last.weight.norm(dim=0), share)
        columns = torch.cat([torch.arange(plain), plain + kept, plain + heads + kept])
        small = Student(
            student.standard.mean, student.standard.scale, places, hidden=(len(inner), len(outer)), heads=len(kept)
        )
        weights = student.state_dict()
        for name in ("sharpness", "recency", "age"):
            weights[f"attention.{name}"] = weights[f"attention.{name}"][kept]
        for name in ("kind", "meaning"):
            weights[f"attention.{name}"] = weights[f"attention.{name}"][:, kept]
        weights["plain.weight"] = weights["plain.weight"][:, columns]
        weights["deep.0.weight"] = weights["deep.0.weight"][inner][:, columns]
        weights["deep.0.bias"] = weights["deep.0.bias"][inner]
        weights["deep.3.weight"] = weights["deep.3.weight"][outer][:, inner]
        weights["deep.3.bias"] = weights["deep.3.bias"][outer]
        weights["deep.5.weight"] = weights["deep.5.weight"][:, outer]
        small.load_state_dict(weights)
    return _fine_tuned(small, lists, replace(settings, rate=_PRUNED * settings.rate), soft)


def used_to_int8(student: Student, lists: Lists, settings: ListSettings, soft: Scores | None) -> Student:
    """A student trained for an epoch with linear layers rounded as `quantise.int8` will round them; gradients pass.

    Its weights lie on the grid of that rounding.
    """
    coarse = copy.deepcopy(student)
    layers = [each for each in coarse.modules() if isinstance(each, nn.Linear)]
    hooks = []
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", _CoarseWeight())
        hooks.append(layer.register_forward_pre_hook(_CoarseInput()))
    trained = _fine_tuned(coarse, lists, replace(settings, rate=_ROUNDED * settings.rate), soft)
    for layer, hook in zip(layers, hooks, strict=True):
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
        hook.remove()
    return trained


def _fine_tuned(student: Student, lists: Lists, settings: ListSettings, soft: Scores | None) -> Student:
    once = replace(settings, epochs=1)
    return train_on_lists(lambda mean, scale: student, lists, once, soft=soft).module


def _spread(student: Student, lists: Lists) -> Tensor:
    """float32 [2 H]: the deviation of each column that the attention gives."""
    sample = lists.take(np.arange(min(_SAMPLE, len(lists))))
    _, *seen, there = tensors(sample)
    return torch.as_tensor(student.attention(*seen))[there].std(dim=0)


def _best(worth: Tensor, share: float) -> Tensor:
    """The places of the highest `share`, at least one, in their order."""
    count = max(1, round(share * len(worth)))
    return worth.topk(count).indices.sort().values


class _CoarseWeight(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        """The weights [out, in] as 7 bits by output channel keep them."""
        scale = weight.detach().abs().amax(dim=1).clamp_min(1e-8) / _WEIGHT_BITS
        zero = torch.zeros(len(scale), dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -_WEIGHT_BITS, _WEIGHT_BITS)


class _CoarseInput:
    """Rounds a layer's input to uint8 over the range that was seen so far."""

    def __init__(self) -> None:
        self._low = self._high = 0.0

    def __call__(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (given,) = inputs
        self._low = min(self._low, float(given.detach().amin()))
        self._high = max(self._high, float(given.detach().amax()), self._low + 1e-6)
        scale = (self._high - self._low) / 255
        zero = max(0, min(255, round(-self._low / scale)))
        return (torch.fake_quantize_per_tensor_affine(given, scale, zero, 0, 255),)
