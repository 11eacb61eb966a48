"""Questions of the past as visits to a running service, whose histories are exact as of each of them.

What a user did between two questions is recorded before the second one is asked, event by event as far as it had
happened by then; so the service knows what `Histories` says, and nothing of the future.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from indexer.contract.features import PURCHASE
from indexer.contract.items import Rows
from indexer.contract.purchases import Bought, UserPurchases, session_tag
from indexer.contract.visits import Deed, Visit
from indexer.learn.interactions import Interactions
from indexer.learn.questions import Question

_DAY_MS = 86_400_000.0
ItemId = Callable[[int], str]
"""The id at a row."""
_Purchase = tuple[int, int]
"""Number of the session, and when, Unix milliseconds."""
TENANT = "default"


def make_visits(questions: Sequence[Question], log: Interactions, start: float, item_id: ItemId) -> list[Visit]:
    """A visit for each question, in the order given, which must be that of time.

    `start` (days): what was done before it is not recorded any more: see `pasts`. Events of the session itself that are
    known carry the moment at which it is asked, at the latest: it is asked at its beginning.
    """
    since: dict[int, float] = {}
    sessions, starts = log.sessions_of_users()
    visits = []
    for each in questions:
        at_ms = milliseconds(each.day)
        before: tuple[tuple[str, tuple[Deed, ...]], ...] = ()
        if each.user >= 0:
            mine = sessions[starts[each.user] : starts[each.user + 1]]
            told = since.get(each.user, start)
            before = tuple(_recorded(log, mine[mine < each.session], told, each.day, item_id))
            since[each.user] = max(told, each.day)
        span = log.session(each.session)
        known = slice(span.start, span.start + len(each.context))
        deeds = [
            Deed(item_id(int(row)), int(kind), min(at_ms, milliseconds(day)))
            for row, kind, day in zip(log.rows[known], log.types[known], log.days[known], strict=True)
        ]
        visits.append(Visit(user_name(each.user), at_ms, tuple(deeds), before))
    return visits


def pasts(
    questions: Sequence[Question], log: Interactions, start: float, item_id: ItemId, most: int
) -> Iterator[UserPurchases]:
    """What the users of the questions bought before `start` (days), the `most` items bought last; users without a
    purchase are left out."""
    sessions, starts = log.sessions_of_users()
    for user in sorted({each.user for each in questions if each.user >= 0}):
        mine = sessions[starts[user] : starts[user + 1]]
        found: dict[int, list[_Purchase]] = {}
        anything: dict[int, _Purchase] = {}
        for number in mine[log.begun[mine] < start].tolist():
            span = log.session(number)
            for at in (span.start + np.flatnonzero((log.types[span] == PURCHASE) & (log.days[span] < start))).tolist():
                bought = number, milliseconds(float(log.days[at]))
                row = int(log.rows[at])
                found[row] = [*found.pop(row, []), bought]  # whatever was bought last stands last
                anything[number] = bought
        if items := list(reversed(found.items()))[:most]:
            ids = [item_id(row) for row, _ in items]
            columns = _bought([list(anything.values())]), ids, _bought([purchases for _, purchases in items])
            yield UserPurchases(TENANT, user_name(user), *columns)


def user_name(user: int) -> str:
    """The id under which the service knows a user of the log; empty for nobody."""
    return f"user-{user}" if user >= 0 else ""


def session_name(number: int) -> str:
    """The id under which the service knows a session of the log."""
    return f"session-{number}"


def milliseconds(day: float) -> int:
    """Unix milliseconds of days since 1970."""
    return round(day * _DAY_MS)


def _bought(purchases: Sequence[list[_Purchase]]) -> Bought:
    """Columns of things that were bought in sessions in order of time: the latest session apart."""
    latest = [each[-1] for each in purchases]
    before = [[at_ms for _, at_ms in each[:-1]] for each in purchases]
    return Bought(
        [session_tag(session_name(number)) for number, _ in latest],
        [at_ms for _, at_ms in latest],
        [len(each) for each in before],
        [min(each, default=0) for each in before],
        [max(each, default=0) for each in before],
    )


def _recorded(
    log: Interactions, sessions: Rows, since: float, day: float, item_id: ItemId
) -> Iterator[tuple[str, tuple[Deed, ...]]]:
    for number in sessions:
        span = log.session(int(number))
        days = log.days[span]
        places = span.start + np.flatnonzero((days >= since) & (days < day))
        deeds = tuple(
            Deed(item_id(int(log.rows[at])), int(log.types[at]), milliseconds(float(log.days[at]))) for at in places
        )
        if deeds:
            yield session_name(int(number)), deeds
