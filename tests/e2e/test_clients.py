"""Clients, unchanged, on real engines: from turn 2 on their history is read back, without any id."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import anthropic
import openai
import pytest

from tests.e2e.conftest import Cluster
from tests.e2e.test_turns import SOURCE, blocks

pytestmark = pytest.mark.e2e

FIXED: dict[str, Any] = {"ignore_eos": True}
SHORT = {"model": "tiny", "temperature": 0}


@pytest.fixture(scope="module")
def client(cluster: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{cluster.proxy}/v1", api_key="none", max_retries=0) as client:
        yield client


def turn(headers: Any) -> dict[str, str]:
    return dict(part.split("=", 1) for part in headers["x-neuron-pd-turn"].split("; "))


def text_at(place: int, chars: int = 1500) -> str:
    return SOURCE[place : place + chars]


@pytest.mark.parametrize("stream", [False, True])
def test_openai_chat(cluster: Cluster, client: openai.OpenAI, stream: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": text_at(11_000 + stream)}]
    for number in range(3):
        raw = client.chat.completions.with_raw_response.create(
            messages=messages, max_completion_tokens=24, stream=stream, extra_body=FIXED, **SHORT
        )
        answer = raw.parse()
        if stream:
            reply = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
        else:
            reply = answer.choices[0].message.content
            assert answer.usage.completion_tokens == 24
        said = turn(raw.headers)
        assert said["path"] == ("read_back" if number else "recompute")
        assert reply == cluster.cold(messages)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": text_at(number, 200)}]


@pytest.mark.parametrize("stream", [False, True])
def test_openai_responses(cluster: Cluster, client: openai.OpenAI, stream: bool) -> None:
    items: list[Any] = [{"role": "user", "content": text_at(12_000 + stream)}]
    for number in range(2):
        raw = client.responses.with_raw_response.create(
            input=items, max_output_tokens=24, stream=stream, extra_body=FIXED, **SHORT
        )
        answer = raw.parse()
        if stream:
            answer = [event for event in answer if event.type == "response.completed"][-1].response
        assert turn(raw.headers)["path"] == ("read_back" if number else "recompute")
        assert answer.usage.output_tokens == 24
        assert "kv_transfer_params" not in raw.http_response.text if not stream else True
        assert answer.output_text == cluster.cold([as_message(item) for item in items])
        items += [*[item.model_dump(exclude_none=True) for item in answer.output], {"role": "user", "content": "go on"}]


def as_message(item: dict[str, Any]) -> dict[str, str]:
    content = item["content"]
    return {
        "role": item["role"],
        "content": content if isinstance(content, str) else "".join(part["text"] for part in content),
    }


def test_openai_completions_and_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    prompt = text_at(14_000)
    first = client.completions.create(prompt=prompt, max_tokens=24, extra_body=FIXED, **SHORT)
    raw = client.completions.with_raw_response.create(
        prompt=prompt + first.choices[0].text + text_at(0, 300), max_tokens=4, **SHORT
    )
    assert turn(raw.headers)["path"] == "read_back"


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic_messages(cluster: Cluster, stream: bool) -> None:
    said: list[Any] = [{"role": "user", "content": text_at(13_000 + stream)}]
    with anthropic.Anthropic(base_url=cluster.proxy, api_key="none", max_retries=0) as client:
        for number in range(3):
            raw = client.messages.with_raw_response.create(
                model="tiny", messages=said, max_tokens=24, stream=stream, extra_body={**FIXED, "temperature": 0}
            )
            answer = raw.parse()
            if stream:
                events = list(answer)
                assert events[-1].type == "message_stop"
                reply = "".join(event.delta.text for event in events if event.type == "content_block_delta")
            else:
                reply = "".join(block.text for block in answer.content)
                assert answer.usage.output_tokens == 24
            assert turn(raw.headers)["path"] == ("read_back" if number else "recompute")
            assert reply == cluster.cold(said)
            said += [{"role": "assistant", "content": reply}, {"role": "user", "content": text_at(number, 200)}]


def test_several_prompts_are_answered_in_order(client: openai.OpenAI) -> None:
    prompts = [text_at(place, 400) for place in (0, 1000, 2000)]
    together = client.completions.create(prompt=prompts, max_tokens=8, extra_body=FIXED, **SHORT)
    apart = [client.completions.create(prompt=prompt, max_tokens=8, extra_body=FIXED, **SHORT) for prompt in prompts]
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in apart]


@pytest.mark.parametrize(
    "fields",
    [{"extra_body": {"prompt_logprobs": 1}}, {"echo": True, "logprobs": 1}],
    ids=["prompt_logprobs", "echo"],
)
def test_what_d_serves_alone_is_right_and_the_next_turn_reads_it_back(
    cluster: Cluster, client: openai.OpenAI, fields: dict[str, Any]
) -> None:
    prompt = f"{fields} {text_at(15_000)}"
    answer = client.completions.create(**{"prompt": prompt, "max_tokens": 8, **SHORT, **fields})
    if "extra_body" in fields:
        assert len(answer.choices[0].model_extra["prompt_logprobs"]) == answer.usage.prompt_tokens
    if "echo" in fields:
        assert answer.choices[0].text.startswith(prompt)
        assert len(answer.choices[0].logprobs.tokens) == answer.usage.total_tokens
    raw = client.completions.with_raw_response.create(prompt=prompt + text_at(0, 600), max_tokens=8, **SHORT)
    said = turn(raw.headers)
    assert said["path"] == "read_back"
    assert int(said["reused"]) >= blocks(answer.usage.prompt_tokens) - 128


def test_an_ended_session_is_forgotten_at_d(cluster: Cluster) -> None:
    name, messages = uuid4().hex, [{"role": "user", "content": text_at(18_000)}]
    first = cluster.chat(messages, conversation_id=name)
    records = cluster.settled()["ledger_records"]
    deleted = cluster.http.delete(f"{cluster.proxy}/neuron_pd/v1/conversations/{name}").json()
    assert deleted == {"id": name, "deleted": True}
    assert cluster.settled()["ledger_records"] == records - 1
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "go on"}]
    assert cluster.chat(messages, conversation_id=name).turn["reason"] == "no_lease"
