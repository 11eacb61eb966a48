"""What is asked: requests drawn with a seed, by shares that a person can read."""

from __future__ import annotations

import tomllib
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from protos import feed_pb2
from services.bench.load.shop import Shop
from services.errors import StartError
from services.settings import describe

Share = Annotated[float, Field(ge=0, le=1)]
FIRST_PAGE = -1
_TYPES = (feed_pb2.EVENT_TYPE_VIEW, feed_pb2.EVENT_TYPE_CLICK, feed_pb2.EVENT_TYPE_CART)
_TYPE_SHARES = (0.7, 0.2, 0.1)
_BETWEEN_PAGES = (20, 200)
"""Requests between a page and the next page of the same feed."""


class Mix(BaseModel):
    """Of all requests, `cold` have no context, `repeated` ask what was asked before, `deep` want the next page of an
    earlier one; the rest are new questions. The other shares are drawn independently of these."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cold: Share = 0.1
    repeated: Share = Field(default=0.3, description="of the last `remembered` questions, any equally likely")
    deep: Share = 0.05
    remembered: int = Field(default=1000, ge=1, le=1_000_000)
    mean_events: float = Field(default=4, ge=1, le=100, description="of a session: geometric, from 1")
    max_events: int = Field(default=20, ge=1, le=100)
    zipf: float = Field(default=1.0, ge=0, le=5, description="the item of popularity rank r weighs 1 / r^zipf")
    prefetch: Share = 0.1
    category: Share = Field(default=0.1, description="ask for a category: that of an item drawn as others are")
    region: Share = Field(default=0.1, description="ask for a region, any equally likely; none where items name none")
    histories: Share = Field(default=0.2, description="of users with a history; none where no user is known")
    page_size: int = Field(default=20, ge=1, le=100)

    @model_validator(mode="after")
    def _shares_fit(self) -> Mix:
        if self.cold + self.repeated + self.deep > 1 + 1e-9:
            raise ValueError(f"cold + repeated + deep = {self.cold + self.repeated + self.deep:g}, expected at most 1")
        return self


def read_mix(given: Sequence[str]) -> Mix:
    """A mix of "key=value" and TOML files, later ones over earlier ones, over the defaults.

    Raises StartError naming key and range.
    """
    told: dict[str, object] = {}
    for each in given:
        key, equals, value = each.partition("=")
        if equals:
            told[key.strip()] = value.strip()
            continue
        try:
            told |= tomllib.loads(Path(each).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise StartError(f"mix {each}: not TOML: {error}") from error
    try:
        return Mix.model_validate(told)
    except ValidationError as error:
        raise StartError(describe(error, None).replace("settings from the environment", "mix")) from error


class Asked(NamedTuple):
    """A request; where it wants the next page, `follows` is the place, in the same draw, of the one whose page came
    before (else FIRST_PAGE)."""

    message: feed_pb2.GetFeedRequest
    follows: int


class Requests:
    """Draws requests to a shop, the same for the same seed. `users`: ids of people with a history."""

    def __init__(self, shop: Shop, mix: Mix, *, users: Sequence[str] = (), seed: int = 1) -> None:
        self._shop = shop
        self._mix = mix
        self._users = users
        self._random = np.random.default_rng(seed)
        self._weights = np.cumsum(np.arange(1, len(shop) + 1, dtype=np.float64) ** -mix.zipf)
        self._asked: deque[feed_pb2.GetFeedRequest] = deque(maxlen=mix.remembered)
        self._drawn = 0

    def draw(self, count: int) -> list[Asked]:
        """The next `count` requests. Each has a session id of its own, but the pages of one feed share theirs."""
        mix, random = self._mix, self._random
        lengths = np.minimum(random.geometric(1 / mix.mean_events, count), mix.max_events)
        items = self.items(int(lengths.sum()))
        types = random.choice(len(_TYPES), len(items), p=_TYPE_SHARES).tolist()
        ends = np.cumsum(lengths).tolist()
        kinds, prefetch = random.random(count).tolist(), (random.random(count) < mix.prefetch).tolist()
        filters = self._filters(count)
        drawn: list[Asked] = []
        for at, (kind, end, length, (category, region)) in enumerate(
            zip(kinds, ends, lengths.tolist(), filters, strict=True)
        ):
            if kind < mix.deep and at >= _BETWEEN_PAGES[0]:
                drawn.append(self._next_page(drawn, at))
                continue
            message = feed_pb2.GetFeedRequest(page_size=mix.page_size, category=category, region=region)
            if kind < mix.deep + mix.repeated and self._asked:
                message.CopyFrom(self._asked[int(random.integers(len(self._asked)))])
            elif kind < 1 - mix.cold:
                message.recent_events.extend(
                    feed_pb2.Event(item_id=items[place], type=_TYPES[types[place]])
                    for place in range(end - length, end)
                )
                self._asked.append(feed_pb2.GetFeedRequest.FromString(message.SerializeToString()))
            message.session_id = f"load-{self._drawn + at}"
            if self._users and random.random() < mix.histories:
                message.user_id = self._users[int(random.integers(len(self._users)))]
            if prefetch[at]:
                message.priority = feed_pb2.PRIORITY_PREFETCH
            drawn.append(Asked(message, FIRST_PAGE))
        self._drawn += count
        return drawn

    def _next_page(self, drawn: Sequence[Asked], at: int) -> Asked:
        before = max(0, at - int(self._random.integers(*_BETWEEN_PAGES)))
        return Asked(drawn[before].message, before)

    def _filters(self, count: int) -> Iterator[tuple[str, str]]:
        """Category and region of each, "" for none."""
        mix, random, regions = self._mix, self._random, self._shop.regions
        categories = self._shop.categories.take(self._ranks(count)).to_pylist()
        of_category, of_region = random.random(count) < mix.category, random.random(count) < mix.region
        region = random.integers(max(1, len(regions)), size=count)
        for at in range(count):
            yield (
                (categories[at] or "") if of_category[at] else "",
                regions[region[at]] if regions and of_region[at] else "",
            )

    def items(self, count: int) -> list[str]:
        """Ids of `count` items."""
        found: list[str] = self._shop.ids.take(self._ranks(count)).to_pylist()
        return found

    def _ranks(self, count: int) -> npt.NDArray[np.int64]:
        """Popularity ranks from 0 by Zipf's law."""
        drawn = self._random.random(count) * self._weights[-1]
        ranks: npt.NDArray[np.int64] = np.searchsorted(self._weights, drawn, side="right").astype(np.int64)
        return ranks
