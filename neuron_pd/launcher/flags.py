"""vLLM's flags: ours, and over them what a person gives after `--`.

A flag that a person gives takes the place of ours, so that none is on the command line twice. Flags whose value is a
JSON object are merged key by key; so are vLLM's dotted ones (`--kv-transfer-config.kv_rank 1`). `--middleware` adds.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from neuron_pd.errors import UsageError
from neuron_pd.profiles.schema import merged
from neuron_pd.profiles.settings import Flag

KV_TRANSFER: Final = "kv-transfer-config"
ADDITIONAL: Final = "additional-config"
OBJECTS: Final = (KV_TRANSFER, ADDITIONAL)
ADDING: Final = ("middleware",)
SHORT: Final = {
    "tp": "tensor-parallel-size",
    "dp": "data-parallel-size",
    "pp": "pipeline-parallel-size",
    "q": "quantization",
    "ep": "enable-expert-parallel",
}
# A command line is seen by every user of the machine, and is printed; vLLM reads these from the environment.
SECRETS: Final = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}
NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")

Value = Flag | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Given:
    """One flag as a person wrote it. `path` is what follows the first dot of its name."""

    name: str
    path: tuple[str, ...]
    value: Flag | None  # None: several words, left as they are
    words: tuple[str, ...]


def parse_flags(words: Sequence[str]) -> list[Given]:
    """What follows `--`. UsageError for a word that no flag precedes, and for a secret."""
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("-") and word != "-" and not NUMBER.fullmatch(word):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
        else:
            raise UsageError(f"unexpected {word!r}: what is meant for vLLM goes behind --, flag first")
    return [_given(group) for group in groups]


def _given(words: list[str]) -> Given:
    head, equals, attached = words[0].partition("=")
    values = ([attached] if equals else []) + words[1:]
    first, *path = head.lstrip("-").split(".")
    name = first.replace("_", "-")
    value: Flag | None = values[0] if len(values) == 1 else True if not values else None
    if not values and name.startswith("no-"):
        name, value = name.removeprefix("no-"), False
    if not head.startswith("--"):
        name = SHORT.get(name, name)
    if name in SECRETS:
        raise UsageError(f"--{name} would show a secret to everyone: leave it out and set {SECRETS[name]} instead")
    return Given(name, tuple(path), value, tuple(words))


def override(flags: Mapping[str, Value], given: Sequence[Given]) -> tuple[dict[str, Value], list[str]]:
    """Our flags with a person's over them, and the words of those that are not among ours."""
    result, rest = dict(flags), list[str]()
    for item in given:
        if item.name in OBJECTS:
            below = result.get(item.name)
            result[item.name] = merged(below if isinstance(below, Mapping) else {}, _object(item))
        elif item.name in result and item.name not in ADDING and item.value is not None and not item.path:
            result[item.name] = item.value
        else:
            if item.name in result and item.name not in ADDING and not item.path:
                del result[item.name]
            rest += item.words
    return result, rest


def told(flags: Mapping[str, Value], given: Sequence[Given]) -> dict[str, Value]:
    """All that the command line says, ours and a person's, for checks: also what `override` leaves as words."""
    return dict(flags) | {
        item.name: item.value
        for item in given
        if item.value is not None and not item.path and item.name not in (*OBJECTS, *ADDING)
    }


def _object(item: Given) -> dict[str, Any]:
    """The JSON object that the flag stands for, also when a dotted name gives one key of it."""
    body = _json(item)
    if not item.path and not isinstance(body, dict):
        raise UsageError(f"--{item.name} takes one JSON object: {' '.join(item.words)!r} is none")
    for name in reversed(item.path):
        body = {name: body}
    assert isinstance(body, dict)
    return body


def _json(item: Given) -> Any:
    if not isinstance(item.value, str):
        return item.value
    try:
        return json.loads(item.value)
    except ValueError:
        return item.value


def number(flags: Mapping[str, Value], name: str) -> int | None:
    """A flag's value where it is a plain whole number; None for `auto`, `32k`, and a flag that is not there."""
    value = flags.get(name)
    if isinstance(value, bool):
        return None
    try:
        return int(str(value))
    except ValueError:
        return None


def as_words(flags: Mapping[str, Value]) -> list[str]:
    """The command line: true is --name, false --no-name, a mapping one JSON text. Each value follows its flag."""
    words: list[str] = []
    for name, value in flags.items():
        if isinstance(value, Mapping):
            words += [f"--{name}", json.dumps(value, separators=(",", ":"))]
        elif isinstance(value, bool):
            words += [f"--{name}" if value else f"--no-{name}"]
        elif str(value).startswith("-"):
            words += [f"--{name}={value}"]  # argparse takes a separate word that begins with a dash for a flag
        else:
            words += [f"--{name}", str(value)]
    return words
