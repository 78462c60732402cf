"""`/v1/completions`."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from neuron_pd.proxy.apis import chat
from neuron_pd.proxy.apis.base import Alone, Body, Reply, offer
from neuron_pd.proxy.chain import Chain, TextChain


def alone(body: Body) -> Alone | None:
    if body.get("prompt_embeds") is not None:
        return Alone.EMBEDS
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) > 1 and isinstance(prompt[0], str | list):
        return Alone.SEVERAL_PROMPTS
    return chat.alone(body)


def chain(scope: "blake2b", body: Body) -> Chain | None:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) or (isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)):
        return TextChain(scope, prompt)
    return None


def whole(answer: Body) -> Reply:
    choice = chat.first_choice(answer)
    text = choice.get("text")
    finished = isinstance(choice.get("finish_reason"), str)
    return Reply(finished, text if isinstance(text, str) else None, params=offer(answer))


class Texts:
    """The texts of the first choice."""

    def __init__(self) -> None:
        self._reply = Reply()
        self._text: list[str] = []

    def event(self, event: Any) -> None:
        self._reply.params = offer(event) or self._reply.params
        for choice in event["choices"]:
            if not choice.get("index"):
                self._choice(choice)

    def reply(self) -> Reply:
        self._reply.said = "".join(self._text)
        return self._reply

    def _choice(self, choice: Mapping[str, Any]) -> None:
        if choice.get("finish_reason") is not None:
            self._reply.finished = True
        self._text.append(choice["text"])


API = replace(chat.API, path="/v1/completions", alone=alone, chain=chain, whole=whole, reader=Texts)
