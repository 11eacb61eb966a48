from __future__ import annotations

from fallback.ladder import Reason, Rung
from protos import feed_pb2


def test_rungs_are_those_of_the_wire_best_first() -> None:
    assert {rung.name: rung.value for rung in Rung} == {
        name.removeprefix("RUNG_"): number for name, number in feed_pb2.Rung.items() if number
    }
    assert list(Rung) == sorted(Rung)


def test_a_reason_degrades_unless_the_page_is_all_that_was_asked_for() -> None:
    assert {reason for reason in Reason if not reason.degrades} == {
        Reason.PREVIOUS_SNAPSHOT,
        Reason.CACHE_UNAVAILABLE,
        Reason.NO_CONTEXT,
        Reason.NO_HISTORY,
        Reason.UNKNOWN_CATEGORY,
        Reason.UNKNOWN_REGION,
        Reason.PAGE_TOKEN_RESTARTED,
    }


def test_reasons_are_words() -> None:
    assert all(reason.value.replace("_", "").isalpha() and reason.value.islower() for reason in Reason)
