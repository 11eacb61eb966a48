"""TIFU-KNN (Hu, He, Gao and Zhang, "Modeling Personalized Item Frequency Information for Next-basket Recommendation",
2020): a user is the time-decayed sum of the user's baskets, mixed with the mean of the users nearest to it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from indexer.contract.items import Rows
from indexer.contract.neighbours import top
from indexer.learn.interactions import Interactions
from indexer.learn.questions import Question

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TifuSettings:
    """Decay within groups of `group` baskets and between them; `alpha`: the user's own share of the mix."""

    group: int = 7
    within: float = 0.9
    between: float = 0.7
    neighbours: int = 300
    alpha: float = 0.7


class Tifu:
    """Vectors of all users as of `day`; the user that asks is seen as of the question, neighbours as of `day`."""

    def __init__(self, log: Interactions, day: float, settings: TifuSettings) -> None:
        self._settings = settings
        self._log = log
        self._sessions, self._starts = log.sessions_of_users()
        vectors = [self._vector(user, day) for user in range(log.n_users)]
        self._users = sparse.csr_matrix(sparse.vstack(vectors))
        self._lengths = np.asarray(self._users.multiply(self._users).sum(axis=1), np.float32).ravel()

    def rank(self, question: Question, limit: int) -> Rows:
        """The best `limit` rows without what the context holds."""
        if question.user < 0:
            return np.empty(0, np.int32)
        own = self._vector(question.user, question.day)
        distance = self._lengths - 2 * np.asarray((self._users @ own.T).todense(), np.float32).ravel()
        distance[question.user] = np.inf
        near = top(-distance, self._settings.neighbours)
        mean = np.asarray(self._users[near].mean(axis=0), np.float32).ravel()
        scores = (1 - self._settings.alpha) * mean
        scores[own.indices] += self._settings.alpha * own.data
        scores[question.context.rows] = 0
        best = top(scores, limit)
        return best[scores[best] > 0].astype(np.int32)

    def _vector(self, user: int, day: float) -> sparse.csr_matrix:
        """float32 CSR [1, n] of the sessions that began before `day`."""
        mine = self._sessions[self._starts[user] : self._starts[user + 1]]
        mine = mine[self._log.begun[mine] < day]
        back = len(mine) - 1 - np.arange(len(mine))
        groups = max(1, -(-len(mine) // self._settings.group))
        in_group = back % self._settings.group
        weights = self._settings.within**in_group * self._settings.between ** (back // self._settings.group)
        weights /= np.minimum(self._settings.group, max(1, len(mine))) * groups
        spans = [self._log.session(int(number)) for number in mine]
        rows = np.concatenate([np.empty(0, np.int32), *(self._log.rows[span] for span in spans)])
        values = np.repeat(weights, [span.stop - span.start for span in spans]).astype(np.float32)
        return sparse.csr_matrix((values, (np.zeros(len(rows), np.int32), rows)), shape=(1, self._log.n_items))
