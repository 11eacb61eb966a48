"""Fits the chance that an item of a user's history is bought again: logistic regression on past sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from indexer.contract.history import FEATURES, Floats, RepurchaseSpec, expand
from indexer.contract.items import Mask

_PENALTY = 1e-4
_STEPS = 200
_ITEMS = 2_000_000
"""Items of histories that are learned from, at most: 17 numbers each, some 300 bytes at the peak."""


def fit_repurchase(features: Sequence[Floats], bought: Sequence[Mask]) -> RepurchaseSpec:
    """From the history features float32 [H, 6] of each session and whether each item was bought in it, bool [H].

    Minimises the mean logistic loss with L-BFGS and a small L2 penalty on the weights of the standardised inputs, which
    are folded back. Where there are very many items, every k-th session is learned from. The default of RepurchaseSpec
    where nothing, or everything, was bought again.
    """
    if not features:
        return RepurchaseSpec()
    every = max(1, math.ceil(sum(map(len, features)) / _ITEMS))
    inputs = expand(np.concatenate(features[::every])).astype(np.float64)
    labels = np.concatenate(bought[::every])
    if not labels.any() or labels.all():
        return RepurchaseSpec()
    mean, scale = inputs.mean(axis=0), np.maximum(inputs.std(axis=0), 1e-6)
    standard = torch.from_numpy(((inputs - mean) / scale).astype(np.float32))
    target = torch.from_numpy(labels.astype(np.float32))
    weights = torch.zeros(inputs.shape[1], requires_grad=True)
    intercept = torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights, intercept], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(standard @ weights + intercept, target)
        loss = loss + _PENALTY * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    folded = weights.detach().numpy().astype(np.float64) / scale
    count = len(FEATURES)
    return RepurchaseSpec(
        linear=tuple(folded[:count].tolist()),
        square=tuple(folded[count : 2 * count].tolist()),
        with_times=tuple(folded[2 * count :].tolist()),
        intercept=float(intercept.detach()) - float(folded @ mean),
    )
