"""Questions of a window as lists for the rankers, found by what was known before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from indexer.contract.blend import BlendSpec
from indexer.contract.towers import Mode
from indexer.learn.interactions import Interactions
from indexer.learn.lists import Lists, make_lists
from indexer.learn.questions import Question, questions
from indexer.learn.retrieval import Asked, Found, ask, choose_blend, find
from indexer.learn.search import Search, exact_search
from indexer.learn.study import Study


@dataclass(frozen=True, slots=True)
class Window:
    """Questions of one window and the candidates that one study finds for them."""

    study: Study
    asked: Sequence[Asked]
    found: Sequence[Found]

    def lists(self, blend: BlendSpec, depth: int, places: int) -> Lists:
        """What a ranker is given of each."""
        return make_lists(self.asked, self.found, self.study.shelf, blend, depth=depth, places=places)


def window(study: Study, asked: Sequence[Asked], mode: Mode, search: Search | None = None) -> Window:
    """Finds the candidates by a search of the study's vectors; None: every vector is searched."""
    return Window(study, asked, find(asked, study.retrieval(search or exact_search(study.shelf.vectors), mode)))


def lesson_questions(log: Interactions, start: float, stop: float, limit: int, kept: int, seed: int) -> list[Asked]:
    """Three of four know the first items of their session, the fourth nothing of it; at most `limit`.

    Where the window holds fewer sessions, each is asked again with another number of known items.
    """
    known = limit - limit // 4
    asked: list[Question] = questions(log, start, stop, known=True, seed=seed, limit=known)
    if len(asked) < known:
        asked += questions(log, start, stop, known=True, seed=seed + 1, limit=known - len(asked))
    asked += questions(log, start, stop, known=False, seed=seed + 2, limit=max(1, len(asked) // 3))
    return ask(asked, log, kept)


def best_blend(windows: Window) -> BlendSpec:
    """The weights with the highest recall@50 on the window's questions."""
    return choose_blend(windows.found, [each.question.targets for each in windows.asked], 50)
