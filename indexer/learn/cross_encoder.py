"""A teacher that reads: a cross-encoder over the titles of what was seen and the title of a candidate.

A hundred times as dear as the others, and of no use where titles say little; off by default. Q questions, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from indexer.learn.lists import Lists, Scores

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

Pair = tuple[str, str]
_SEPARATOR = "; "


@dataclass(frozen=True, slots=True)
class Reader:
    """A sentence-transformers CrossEncoder, fine-tuned from a transformer in a folder; behind the protocol Teacher.

    `texts`: the title of each item, by row. A fit sees at most `pairs` pairs, once: `group` candidates of a question,
    one of them bought, by softmax; so that a check has nothing to decide. Only the first `depth` candidates of the
    blend are read; the others stand behind them, in the blend's order. `events`: latest titles that are read.
    """

    texts: Sequence[str]
    model: str
    pairs: int = 20_000
    group: int = 4
    depth: int = 50
    events: int = 8
    tokens: int = 128
    questions: int = 8
    rate: float = 3e-5
    threads: int = 1
    seed: int = 1
    trained: CrossEncoder | None = None

    def fit(self, lists: Lists, check: Lists | None = None) -> Reader:
        """As of Teacher. Raises ValueError when no question has both what was bought and what was not."""
        torch.manual_seed(self.seed)
        torch.set_num_threads(self.threads)
        groups = self._groups(lists)
        if not groups:
            raise ValueError("lists: no question has a candidate that was bought and one that was not")
        encoder = self._load().train()
        optimiser = torch.optim.AdamW(encoder.parameters(), lr=self.rate)
        for first in range(0, len(groups), self.questions):
            part = groups[first : first + self.questions]
            optimiser.zero_grad()
            logits = self._logits(encoder, [pair for group in part for pair in group]).view(len(part), self.group)
            loss = -torch.log_softmax(logits, dim=1)[:, 0].mean()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
            optimiser.step()
        return replace(self, trained=encoder.eval())

    def score(self, lists: Lists) -> Scores:
        """As of Teacher."""
        if self.trained is None:
            raise ValueError("cross_encoder: fit it before it scores")
        out = np.zeros(lists.rows.shape, np.float32)
        width = lists.rows.shape[1]
        for at in range(len(lists)):
            size = int(lists.present[at].sum())
            read = min(size, self.depth)
            seen = self._seen(lists, at)
            pairs = [(seen, self.texts[row]) for row in lists.rows[at, :read]]
            with torch.inference_mode():
                out[at, :read] = self._logits(self.trained, pairs).numpy() if pairs else 0.0
            lowest = float(out[at, :read].min(initial=0.0))
            out[at, read:] = lowest - 1 - np.arange(width - read, dtype=np.float32) / width
        return out

    def _groups(self, lists: Lists) -> list[list[Pair]]:
        """Pairs by question, the bought one first; at most `pairs` of them in all."""
        random = np.random.default_rng(self.seed)
        groups: list[list[Pair]] = []
        for at in random.permutation(np.flatnonzero(lists.answerable())):
            if (len(groups) + 1) * self.group > self.pairs:
                break
            bought = np.flatnonzero(lists.positive[at])
            others = np.flatnonzero(lists.present[at] & ~lists.positive[at])
            if not len(others):
                continue
            places = [random.choice(bought), *random.choice(others, self.group - 1, replace=True)]
            seen = self._seen(lists, int(at))
            groups.append([(seen, self.texts[lists.rows[at, place]]) for place in places])
        return groups

    def _seen(self, lists: Lists, at: int) -> str:
        rows = lists.context_rows[at][lists.context_mask[at]][: self.events]
        return _SEPARATOR.join(self.texts[row] for row in rows)

    def _load(self) -> CrossEncoder:
        from sentence_transformers import CrossEncoder  # noqa: PLC0415 - seconds, and most builds have no reader
        from transformers.utils import logging as transformers_logging  # noqa: PLC0415

        transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # a new head is what is wanted
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        encoder = CrossEncoder(self.model, num_labels=1, max_length=self.tokens, device="cpu", local_files_only=True)
        return cast("CrossEncoder", encoder)

    def _logits(self, encoder: CrossEncoder, pairs: Sequence[Pair]) -> Tensor:
        """float32 [pairs]."""
        return torch.as_tensor(encoder(encoder.preprocess(list(pairs)))["scores"]).squeeze(-1)
