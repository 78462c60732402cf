"""Dataclasses read from YAML: every key is known, every value is of its kind, and what is wrong is said with its place.

A field made by `key` carries how it is read and one line on what it means; docs/launch.md lists the same lines.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from string import Formatter
from typing import Any, Final, TypeVar

from neuron_pd.errors import UsageError

T = TypeVar("T")
Read = Callable[[Any, str], Any]
REQUIRED: Final = object()
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def key(read: Read, doc: str, default: Any = REQUIRED) -> Any:
    """A dataclass field that is a key of the YAML. Required where no default is given."""
    metadata = {"read": read, "doc": doc}
    if default is REQUIRED:
        return field(metadata=metadata)
    if isinstance(default, dict):
        return field(metadata=metadata, default_factory=dict)
    return field(metadata=metadata, default=default)


def build(kind: type[T], body: Any, where: str) -> T:
    """A `kind` from a mapping. UsageError naming the place: an unknown key, a missing one, or a wrong value."""
    if not isinstance(body, dict):
        raise UsageError(f"{where} must be a mapping")
    known = keys(kind)
    if unknown := sorted(str(name) for name in body if name not in known):
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(known)}")
    if missing := [name for name in known if is_required(known[name]) and name not in body]:
        raise UsageError(f"{where}: {missing[0]} is missing")
    return kind(**{name: known[name].metadata["read"](value, place(where, name)) for name, value in body.items()})


def keys(kind: Any) -> "dict[str, Field[Any]]":
    """The keys of a kind, in the order of its fields."""
    return {item.name: item for item in fields(kind) if "read" in item.metadata}


def is_required(item: "Field[Any]") -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def place(where: str, name: str) -> str:
    """file: a.b"""
    return f"{where}.{name}" if ": " in where else f"{where}: {name}"


def whole(value: Any, where: str) -> int:
    if type(value) is not int or value < 1:
        raise UsageError(f"{where} must be a whole number above 0, not {value!r}")
    return value


def count(value: Any, where: str) -> int:
    if type(value) is not int or value < 0:
        raise UsageError(f"{where} must be a whole number, not {value!r}")
    return value


def yes_or_no(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{where} must be true or false, not {value!r}")
    return value


def text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{where} must be text, not {value!r}")
    return value


def one_of(*choices: str) -> Read:
    def read(value: Any, where: str) -> str:
        if value not in choices:
            raise UsageError(f"{where} is {value!r}: use {' or '.join(choices)}")
        return str(value)

    return read


def texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{where} must be a list of texts")
    return tuple(value)


def nested(kind: type[Any]) -> Read:
    return lambda value, where: build(kind, value, where)


def mapping_of(read: Read, names: tuple[str, ...] = ()) -> Read:
    """A mapping whose values are all read alike; with `names`, exactly those keys."""

    def read_all(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise UsageError(f"{where} must be a mapping")
        if names and sorted(map(str, value)) != sorted(names):
            raise UsageError(f"{where} must be exactly {' and '.join(names)}")
        return {str(name): read(item, place(where, str(name))) for name, item in value.items()}

    return read_all


def variables(value: Any, where: str) -> dict[str, str]:
    """Environment variables: texts, because YAML would make of 0 and no what a shell does not."""
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be a mapping of names to texts")
    for name, item in value.items():
        if not isinstance(name, str) or not VARIABLE.fullmatch(name):
            raise UsageError(f"{where}: {name!r} is not a name of an environment variable")
        if not isinstance(item, str):
            raise UsageError(f"{where}: {name} must be a text: put {item!r} in quotes")
    return dict(value)


def vllm_flags(value: Any, where: str) -> dict[str, str | int | float | bool]:
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be a mapping of vLLM flags, without their dashes, to values")
    for name, item in value.items():
        if not isinstance(name, str) or name.startswith("-") or not isinstance(item, str | int | float | bool):
            raise UsageError(f"{where}: {name} must be a flag without dashes with one text, number, true or false")
    return dict(value)


def json_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise UsageError(f"{where} must be a mapping")
    return dict(value)


def check_placeholders(values: list[str], known: frozenset[str], where: str) -> None:
    """Every {name} in the texts is one of `known`."""
    for value in values:
        try:
            names = {name for _, name, _, _ in Formatter().parse(value) if name is not None}
        except ValueError as error:
            raise UsageError(f"{where}: {value!r}: {error}; write {{{{ and }}}} for braces") from error
        if unknown := sorted(names - known):
            raise UsageError(f"{where}: unknown value {{{unknown[0]}}}; known are {', '.join(sorted(known))}")


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`, mapping by mapping; anything else is replaced whole."""
    result = dict(base)
    for name, value in top.items():
        below = result.get(name)
        result[name] = merged(below, value) if isinstance(value, Mapping) and isinstance(below, Mapping) else value
    return result
