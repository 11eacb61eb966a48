"""What the REST interface says of itself agrees with feed.proto, and with what the page knows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import httpx
import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor
from pydantic import BaseModel

from fallback.ladder import Reason
from protos import feed_pb2
from services.console import app as console_app
from services.console import schema

WORDS = (Path(console_app.__file__).parent / "static" / "words.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (schema.FeedBody, feed_pb2.GetFeedRequest.DESCRIPTOR),
        (schema.EventsBody, feed_pb2.RecordEventsRequest.DESCRIPTOR),
        (schema.EventBody, feed_pb2.Event.DESCRIPTOR),
        (schema.FeedAnswer, feed_pb2.GetFeedResponse.DESCRIPTOR),
        (schema.FeedItemBody, feed_pb2.FeedItem.DESCRIPTOR),
        (schema.ProvenanceBody, feed_pb2.Provenance.DESCRIPTOR),
        (schema.StageBody, feed_pb2.StageTime.DESCRIPTOR),
        (schema.EventsAnswer, feed_pb2.RecordEventsResponse.DESCRIPTOR),
    ],
)
def test_every_field_of_the_proto_is_a_field_of_the_json(model: type[BaseModel], message: Descriptor) -> None:
    assert list(model.model_fields) == [field.name for field in message.fields]


@pytest.mark.parametrize(
    ("words", "enum", "prefix"),
    [
        (schema.EventWord, feed_pb2.EventType.DESCRIPTOR, "EVENT_TYPE_"),
        (schema.PriorityWord, feed_pb2.Priority.DESCRIPTOR, "PRIORITY_"),
        (schema.RungWord, feed_pb2.Rung.DESCRIPTOR, "RUNG_"),
        (schema.SourceWord, feed_pb2.Source.DESCRIPTOR, "SOURCE_"),
        (schema.CacheWord, feed_pb2.CacheOutcome.DESCRIPTOR, "CACHE_OUTCOME_"),
    ],
)
def test_every_value_of_the_proto_is_a_word(words: object, enum: EnumDescriptor, prefix: str) -> None:
    assert list(get_args(words)) == [value.name.removeprefix(prefix).lower() for value in enum.values[1:]]


def test_the_page_has_plain_words_for_every_rung_source_cache_outcome_and_reason() -> None:
    known = set(re.findall(r"^  (\w+):", WORDS, flags=re.MULTILINE))
    words = (schema.RungWord, schema.CacheWord, schema.SourceWord)
    assert known >= {*(word for each in words for word in get_args(each)), *(reason.value for reason in Reason)}


async def test_openapi_tells_paths_errors_and_examples_that_work(http: httpx.AsyncClient) -> None:
    told = (await http.get("/openapi.json")).json()
    assert {"/v1/feed", "/v1/events", "/v1/items", "/healthz", "/readyz", "/metrics"} <= set(told["paths"])
    assert set(told["paths"]["/v1/events"]["post"]["responses"]) >= {"200", "400", "401", "413", "503"}
    models = told["components"]["schemas"]
    for path, name in (("/v1/feed", "FeedBody"), ("/v1/events", "EventsBody")):
        for example in models[name]["examples"]:
            assert (await http.post(path, json=example)).status_code == 200
    for example in models["FeedAnswer"]["examples"]:
        schema.FeedAnswer.model_validate(example)


async def test_the_answers_keep_to_their_models(http: httpx.AsyncClient) -> None:
    page = await http.post("/v1/feed", json={"recent_events": [{"item_id": "i5", "type": "cart"}]})
    schema.FeedAnswer.model_validate(page.json(), strict=True)
    schema.ItemsAnswer.model_validate((await http.get("/v1/items")).json(), strict=True)
    schema.ReadinessAnswer.model_validate((await http.get("/readyz")).json())
