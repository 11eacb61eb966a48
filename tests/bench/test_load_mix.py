"""What is asked: shares, sessions, items, next pages."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from protos import feed_pb2
from services.bench.load.mix import FIRST_PAGE, Mix, Requests, read_mix
from services.bench.load.shop import Shop
from services.errors import StartError


def shop(count: int = 1000) -> Shop:
    categories = pa.array([("tea", "coffee", None)[row % 3] for row in range(count)], pa.string())
    return Shop("snapshot", pa.array([f"i{row}" for row in range(count)]), categories, ("north", "south"), False)


def test_requests_are_the_same_for_a_seed() -> None:
    one, other, third = (Requests(shop(), Mix(), users=("u",), seed=seed).draw(300) for seed in (5, 5, 6))
    assert [asked.message.SerializeToString() for asked in one] == [
        asked.message.SerializeToString() for asked in other
    ]
    assert one != third


def test_shares_of_the_mix_are_those_of_the_requests() -> None:
    mix = Mix(cold=0.2, repeated=0.3, deep=0.1, prefetch=0.25, category=0.5, region=0.5, histories=0.4)
    asked = Requests(shop(), mix, users=("anna", "ben"), seed=1).draw(20_000)
    firsts = [one.message for one in asked if one.follows == FIRST_PAGE]
    assert len(asked) - len(firsts) == pytest.approx(2000, abs=150)
    warm = [message for message in firsts if message.recent_events]
    assert len(firsts) - len(warm) == pytest.approx(4000, abs=250)
    contexts = Counter(b"".join(event.SerializeToString() for event in message.recent_events) for message in warm)
    assert len(warm) - len(contexts) > 5500
    assert {message.user_id for message in firsts} == {"", "anna", "ben"}
    assert sum(bool(message.user_id) for message in firsts) == pytest.approx(0.4 * len(firsts), rel=0.05)
    assert sum(message.priority == feed_pb2.PRIORITY_PREFETCH for message in firsts) == pytest.approx(
        0.25 * len(firsts), rel=0.05
    )
    assert sum(bool(message.region) for message in firsts) == pytest.approx(0.5 * len(firsts), rel=0.05)
    assert {message.category for message in firsts} == {"", "tea", "coffee"}
    assert len({message.session_id for message in firsts}) == len(firsts)


def test_a_next_page_is_of_an_earlier_request() -> None:
    asked = Requests(shop(), Mix(deep=0.5, repeated=0, cold=0), seed=1).draw(2000)
    for at, one in enumerate(asked):
        if one.follows != FIRST_PAGE:
            assert at - 200 <= one.follows < at
            assert one.message == asked[one.follows].message


def test_items_follow_zipf_and_sessions_their_mean_length() -> None:
    asked = Requests(shop(), Mix(cold=0, repeated=0, deep=0, zipf=1, mean_events=3), seed=1).draw(20_000)
    lengths = [len(one.message.recent_events) for one in asked]
    assert (min(lengths), max(lengths)) == (1, 20)
    assert np.mean(lengths) == pytest.approx(3, abs=0.05)
    items = Counter(event.item_id for one in asked for event in one.message.recent_events)
    assert items["i0"] / items["i9"] == pytest.approx(10, rel=0.15)


def test_a_mix_is_told_by_files_and_by_keys(tmp_path: Path) -> None:
    path = tmp_path / "mix.toml"
    path.write_text("cold = 0.5\nzipf = 0.8\n")
    mix = read_mix([str(path), "cold=0.4"])
    assert (mix.cold, mix.zipf, mix.repeated) == (0.4, 0.8, 0.3)


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (["cold=2"], "mix: cold"),
        (["warm=1"], "mix: warm: unknown key"),
        (["cold=0.9", "repeated=0.9"], "expected at most 1"),
    ],
)
def test_a_wrong_mix_is_named(told: list[str], said: str) -> None:
    with pytest.raises(StartError, match=re.escape(said)):
        read_mix(told)
