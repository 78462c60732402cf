"""What the proxy must know of an API that generates text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Any, Protocol

from neuron_pd.proxy.chain import Chain, Said

Body = Mapping[str, Any]


class Alone(StrEnum):
    """Why a request is served by one engine, without a hand-off."""

    SEVERAL_PROMPTS = "several_prompts"  # their block lists would come back as one
    SEVERAL_CHOICES = "several_choices"  # each choice would read, and the first to finish would free, P's blocks
    BEAM_SEARCH = "beam_search"  # many requests inside the engine
    PROMPT_LOGPROBS = "prompt_logprobs"  # they are computed during prefill, which D would skip
    ECHO = "echo"
    TRUNCATION = "truncate_prompt_tokens"  # the engine may cut the prompt by the cap, which differs on P
    EMBEDS = "prompt_embeds"  # no token ids to verify
    NO_OUTPUT = "no_output"  # a cap of 0
    PREVIOUS_RESPONSE = "previous_response"  # D has the history, P does not
    BACKGROUND = "background"  # the answer is no answer yet
    ENGINE_TOOLS = "engine_tools"  # the engine calls them and generates again, with blocks that were read

    @property
    def recorded(self) -> bool:
        """Whether D can record the turn, so that the next one starts from it."""
        return self in (Alone.SEVERAL_CHOICES, Alone.PROMPT_LOGPROBS, Alone.ECHO, Alone.PREVIOUS_RESPONSE)


@dataclass(slots=True)
class Reply:
    """What an answer said: did it end well; its parts; its id, where a later request may name it; D's offer."""

    finished: bool = False
    said: Said = None
    id: str = ""
    params: Mapping[str, Any] | None = None


class Reader(Protocol):
    """Puts the events of a stream together."""

    def event(self, event: Any) -> None:
        """One event's JSON. KeyError, TypeError or AttributeError for one that is not of this API."""

    def reply(self) -> Reply: ...


@dataclass(frozen=True, slots=True)
class Api:
    """One API.

    `caps`: the field that caps the output, and others that may stand beside it. `not_for_prefill`: fields that P
    is not sent. `finish`: bytes of which a stream that ended well has one. `always_read`: replies are collected.
    """

    path: str
    caps: tuple[str, ...]
    not_for_prefill: frozenset[str]
    finish: tuple[bytes, ...]
    alone: Callable[[Body], Alone | None]
    chain: Callable[["blake2b", Body], Chain | None]
    whole: Callable[[Body], Reply]
    reader: Callable[[], Reader]
    always_read: bool = False
    for_prefill: Mapping[str, Any] = field(default_factory=dict)  # and what it is sent in their place


def offer(answer: Body) -> Mapping[str, Any] | None:
    """The transfer parameters in an answer, where they are more than null."""
    params = answer.get("kv_transfer_params")
    return params if isinstance(params, Mapping) and params else None


def more_than_one(value: Any) -> bool:
    return isinstance(value, int) and value > 1
