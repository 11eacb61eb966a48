"""A settings file with every key, its default and its meaning, made from the classes that validate it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_BOUNDS = ((Ge, "ge", "at least"), (Gt, "gt", "above"), (Le, "le", "at most"), (Lt, "lt", "below"))


def example(settings: type[BaseModel], **others: type[BaseModel]) -> str:
    """TOML of the sections of `settings` and of `others`. Keys are comments: one that is uncommented is a choice."""
    lines = ["# Settings of Feedline. FEEDLINE_<SECTION>__<KEY> in the environment stands above this file."]
    for name, section in (_sections(settings) | others).items():
        lines += ["", *_table(name, section)]
    return "\n".join(lines) + "\n"


def _sections(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The fields of a model that are models themselves."""
    return {
        key: field.annotation
        for key, field in model.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
    }


def _table(name: str, section: type[BaseModel]) -> Iterator[str]:
    yield f"# {' '.join((section.__doc__ or '').split())}"
    yield f"[{name}]"
    nested = _sections(section)
    for key, field in section.model_fields.items():
        if key in nested:
            continue
        default = field.get_default(call_default_factory=True)
        yield f"# {key} = {_toml(default)}{_note(field)}" if default is not None else f"# {key}: not set{_note(field)}"
    for key, model in nested.items():
        yield ""
        yield from _table(f"{name}.{key}", model)


def _note(field: FieldInfo) -> str:
    bounds = [
        f"{words} {getattr(rule, attribute):.10g}"
        for kind, attribute, words in _BOUNDS
        for rule in field.metadata
        if isinstance(rule, kind)
    ]
    choices = ", ".join(map(json.dumps, get_args(field.annotation))) if get_origin(field.annotation) is Literal else ""
    parts = [choices and f"one of {choices}", ", ".join(bounds), field.description or ""]
    return f"    # {'; '.join(filter(None, parts))}" if any(parts) else ""


def _toml(value: Any) -> str:
    """A default as TOML."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, tuple | list | frozenset):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, Path):
        return json.dumps(str(value))
    return json.dumps(value)
