"""What is asked: questions nobody asked before, questions that are kept, and some that find the door shut.

The tenant is part of a question's key in the cache, so that the same question of another tenant is another question.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from protos import feed_pb2
from services.bench.load.mix import FIRST_PAGE, Asked, Mix, Requests
from services.bench.load.shop import Shop

REPEATED = 500
"""Questions that are asked again and again, any equally likely."""
_MIX = Mix(cold=0, repeated=0, deep=0, prefetch=0, histories=0)


class Questions:
    """Draws requests to a shop, the same for the same seed: sessions of items by popularity, first pages, no user.

    Each brings its context itself. `sessions`: new ones name a session, too, so that the service reads it.
    """

    def __init__(self, shop: Shop, *, seed: int, sessions: bool = False) -> None:
        self._requests = Requests(shop, _MIX, seed=seed)
        self._random = np.random.default_rng(seed)
        self._number = itertools.count()
        self._sessions = sessions
        self._kept = [self._without_session(one.message) for one in self._requests.draw(REPEATED)]

    def new(self, count: int) -> list[Asked]:
        """Nobody has asked them before: each is of a tenant of its own."""
        found = self._requests.draw(count)
        for one in found:
            one.message.tenant = f"new-{next(self._number)}"
            if not self._sessions:
                one.message.ClearField("session_id")
        return found

    def shut_out(self, count: int) -> list[Asked]:
        """New ones of a priority that the service is set to let nothing in for."""
        found = self.new(count)
        for one in found:
            one.message.priority = feed_pb2.PRIORITY_PREFETCH
        return found

    def each_repeated(self, tenant: str) -> list[Asked]:
        """Every question that will be repeated, once."""
        return [_of(message, tenant) for message in self._kept]

    def repeated(self, count: int, tenant: str) -> list[Asked]:
        """Questions of `each_repeated` alone."""
        return [_of(self._kept[at], tenant) for at in self._random.integers(len(self._kept), size=count).tolist()]

    def mixed(self, count: int, share: float, tenant: str) -> list[Asked]:
        """`share` of them repeated, the others new; which is which is drawn."""
        old = self._random.random(count) < share
        again, new = iter(self.repeated(int(old.sum()), tenant)), iter(self.new(int((~old).sum())))
        return [next(again if one else new) for one in old.tolist()]

    @staticmethod
    def _without_session(message: feed_pb2.GetFeedRequest) -> feed_pb2.GetFeedRequest:
        message.ClearField("session_id")
        return message


def one_after_another(parts: Sequence[Sequence[Asked]]) -> list[Asked]:
    """The requests of steps that follow each other."""
    return [one for part in parts for one in part]


def _of(message: feed_pb2.GetFeedRequest, tenant: str) -> Asked:
    asked = feed_pb2.GetFeedRequest()
    asked.CopyFrom(message)
    asked.tenant = tenant
    return Asked(asked, FIRST_PAGE)
