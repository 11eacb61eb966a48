"""A linear ranker over the features of the contract, fitted by a listwise loss.

E questions, C candidates each, F features. Small enough to be fitted to its optimum: the loss is convex.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from indexer.contract.features import FEATURES, Floats

_PENALTY = 1e-3
_STEPS = 100


class LinearRanker(torch.nn.Module):
    """scores [batch, candidates] = features [batch, candidates, F] @ weights [F]; higher is better."""

    def __init__(self, weights: npt.NDArray[np.float64]) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor(weights, dtype=torch.float32).reshape(-1, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """As the class says; float32."""
        return torch.matmul(features, self.weights).squeeze(-1)


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """`features` float32 [E, C, F]; `positive` bool [E, C]; `present` bool [E, C], False beyond the candidates."""

    features: Floats
    positive: npt.NDArray[np.bool_]
    present: npt.NDArray[np.bool_]

    def answerable(self) -> TrainingSet:
        """The questions that have a positive among their candidates: only these teach anything."""
        keep = self.positive.any(axis=1)
        return TrainingSet(self.features[keep], self.positive[keep], self.present[keep])

    def __len__(self) -> int:
        return len(self.features)


def retrieval_order() -> LinearRanker:
    """The ranker that keeps the order of retrieval, for when there is too little to learn from."""
    return LinearRanker(np.array([float(name == "retrieval_score") for name in FEATURES]))


def fit(data: TrainingSet, *, threads: int) -> LinearRanker:
    """Minimises the multi-positive softmax loss with L-BFGS; every question must have a positive.

    loss = mean over questions of -mean over positives of log softmax(scores), plus an L2 penalty on the weights of
    the standardised features. The standardisation is folded into the weights; what it adds to all scores alike is
    left out. Raises ValueError when the weights are not finite.
    """
    torch.set_num_threads(threads)
    known = data.features[data.present].astype(np.float64)
    scale = np.maximum(known.std(axis=0), 1e-6)
    inputs = torch.tensor((data.features - known.mean(axis=0)) / scale)
    positive = torch.tensor(data.positive, dtype=torch.float64)
    share = positive / positive.sum(dim=1, keepdim=True)
    absent = torch.tensor(~data.present)
    weights = torch.zeros(data.features.shape[2], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([weights], max_iter=_STEPS, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        scores = (inputs @ weights).masked_fill(absent, -1e9)
        loss = -(share * torch.log_softmax(scores, dim=1)).sum(dim=1).mean() + _PENALTY * weights.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    folded = weights.detach().numpy() / scale
    if not np.isfinite(folded).all():
        raise ValueError(f"the ranker's weights are not finite: {folded.tolist()}")
    return LinearRanker(folded)
