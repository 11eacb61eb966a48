from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache.key import Field, content_key

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.binary(max_size=8),
)
values: st.SearchStrategy[Field] = st.recursive(scalars, lambda inner: st.lists(inner, max_size=4), max_leaves=8)
questions = st.dictionaries(st.text(max_size=6), values, max_size=5)


def typed(value: Field) -> object:
    """The value with its types spelled out: equal exactly when the key must be equal."""
    if isinstance(value, list | tuple):
        return ("sequence", tuple(typed(item) for item in value))
    return (type(value).__name__, value)


@given(questions, questions)
def test_keys_are_equal_exactly_when_the_content_is(one: dict[str, Field], other: dict[str, Field]) -> None:
    same = {name: typed(value) for name, value in one.items()} == {name: typed(value) for name, value in other.items()}

    assert (content_key("p", one) == content_key("p", other)) is same


@given(questions, st.randoms(use_true_random=False))
def test_the_order_of_names_does_not_matter(question: dict[str, Field], random: object) -> None:
    names = list(question)
    random.shuffle(names)  # type: ignore[attr-defined]

    assert content_key("p", {name: question[name] for name in names}) == content_key("p", question)


def test_absent_none_empty_zero_and_false_are_different() -> None:
    questions: list[dict[str, Field]] = [{}, {"a": None}, {"a": ""}, {"a": b""}, {"a": []}, {"a": 0}, {"a": 0.0}]
    questions.append({"a": False})

    assert len({content_key("p", question) for question in questions}) == len(questions)


def test_the_order_of_a_sequence_matters_and_its_kind_does_not() -> None:
    assert content_key("p", {"a": ["x", "y"]}) != content_key("p", {"a": ["y", "x"]})
    assert content_key("p", {"a": ["x", "y"]}) == content_key("p", {"a": ("x", "y")})


def test_content_cannot_move_from_one_field_to_another() -> None:
    assert content_key("p", {"a": "xy", "b": ""}) != content_key("p", {"a": "x", "b": "y"})
    assert content_key("p", {"a": [["x"], []]}) != content_key("p", {"a": [["x", []]]})


def test_text_is_not_normalised() -> None:
    assert content_key("p", {"a": "\u00e9"}) != content_key("p", {"a": "e\u0301"})
    assert content_key("p", {"a": "007"}) != content_key("p", {"a": "7"})


def test_negative_zero_is_zero() -> None:
    assert content_key("p", {"a": -0.0}) == content_key("p", {"a": 0.0})


def test_the_key_shows_prefix_and_format_and_stays_the_same_between_versions() -> None:
    key = content_key("feedline", {"snapshot": "s1", "context": [7, "view"], "category": None})

    assert key.startswith(b"feedline:1:")
    assert key.removeprefix(b"feedline:1:").hex() == "14cf266ba89ede1ab9565e5a32b52b96d6bb15cf"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused_by_name(number: float) -> None:
    with pytest.raises(ValueError, match=r"^scores\[1\]: expected a finite number"):
        content_key("p", {"scores": [1.0, number]})


def test_a_value_of_another_type_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match=r"^context\[0\]: expected .* got set"):
        content_key("p", {"context": [{1}]})  # type: ignore[list-item]
