"""The tiny model as vLLM's users meet it: turn by turn, through its chat template."""

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neuron_pd.models import model_dir, tiny
from neuron_pd.models.store import MANIFEST

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

Messages = list[dict[str, Any]]
REPLY = 24


class Model:
    """Loaded from its directory; greedy replies."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()

    def prompt(self, messages: Messages) -> list[int]:
        encoded = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])

    def reply(self, prompt: list[int], tokens: int = REPLY) -> list[int]:
        with torch.no_grad():
            output = self.model.generate(torch.tensor([prompt]), max_new_tokens=tokens)
        return list(output[0, len(prompt) :].tolist())

    def text(self, reply: list[int]) -> str:
        return str(self.tokenizer.decode(reply, skip_special_tokens=True))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    root = tmp_path_factory.mktemp("tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        return Model(model_dir("tiny", root / "model"))


def words(seed: int, count: int) -> str:
    chooser = random.Random(seed)
    return " ".join(
        chooser.choice(("token", "cache", "path", "zebra", "Büro", "x=1;", "{}", "\n")) for _ in range(count)
    )


def test_it_is_what_it_says(model: Model) -> None:
    config = model.model.config
    assert config.model_type == "qwen3"
    assert config.max_position_embeddings == 32768
    assert 28e6 < model.model.num_parameters() < 31e6
    assert model.model.dtype == torch.float32
    assert model.model.generation_config.max_new_tokens == tiny.DEFAULT_REPLY
    assert (model.directory / MANIFEST).is_file()


def test_replies_survive_the_round_trip(model: Model) -> None:
    """Each next prompt starts with the tokens of the last prompt and its reply, whatever the messages are."""
    for seed in range(3):
        messages: Messages = [{"role": "system", "content": words(seed, 20)}]
        before: list[int] = []
        for turn in range(3):
            role = "user" if turn % 2 == 0 else "tool"
            messages.append({"role": role, "content": words(10 * seed + turn, 40)})
            prompt = model.prompt(messages)
            assert prompt[: len(before)] == before
            reply = model.reply(prompt)
            messages.append({"role": "assistant", "content": model.text(reply)})
            before = [*prompt, *reply]


def test_any_words_it_can_say_survive_the_round_trip(model: Model) -> None:
    tokenizer, said = tiny._tokenizer()
    chooser = random.Random(0)
    assert len(said) > 500
    for _ in range(50):
        reply = [chooser.choice(said) for _ in range(50)]
        assert tokenizer.encode(tokenizer.decode(reply)) == reply
        assert model.tokenizer.encode(model.text(reply), add_special_tokens=False) == reply


def test_it_says_words_only_also_when_sampled(model: Model) -> None:
    prompt = model.prompt([{"role": "user", "content": "hello"}])
    with torch.no_grad():
        logits = model.model(torch.tensor([prompt])).logits[0]
    _, said = tiny._tokenizer()
    silent = torch.ones(logits.shape[-1], dtype=torch.bool)
    silent[[*said, model.tokenizer.eos_token_id]] = False
    assert logits.softmax(-1)[:, silent].max() < 1e-30


def test_a_changed_word_anywhere_changes_the_reply(model: Model) -> None:
    text = words(1, 1200).split(" ")
    replies = [model.reply(model.prompt([{"role": "user", "content": " ".join(text)}]))]
    for position in (2, 600, 1190):
        changed = [*text[:position], "giraffe", *text[position + 1 :]]
        replies.append(model.reply(model.prompt([{"role": "user", "content": " ".join(changed)}])))
    assert len({tuple(reply) for reply in replies}) == 4


def test_replies_do_not_get_stuck(model: Model) -> None:
    reply = model.reply(model.prompt([{"role": "user", "content": "go on"}]), 200)
    assert len(reply) == 200
    assert len(set(reply)) > 80


def test_greedy_replies_repeat_exactly(model: Model) -> None:
    prompt = model.prompt([{"role": "user", "content": words(5, 100)}])
    assert model.reply(prompt) == model.reply(prompt)


def test_the_template_renders_tools_and_calls(model: Model) -> None:
    call = {"type": "function", "function": {"name": "look", "arguments": {"at": "it"}}}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "seen"},
    ]
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    text = model.tokenizer.apply_chat_template(messages, tools=[tool], tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\n# Tools\n{")
    assert (
        '<|im_start|>assistant\n<tool_call>{"name": "look", "arguments": {"at": "it"}}</tool_call><|im_end|>\n' in text
    )
    assert text.endswith("<|im_start|>tool\nseen<|im_end|>\n<|im_start|>assistant\n")


def test_it_is_the_same_wherever_it_is_made(model: Model, tmp_path: Path) -> None:
    """In another process with another hash seed, byte for byte."""
    command = [sys.executable, "-m", "neuron_pd", "model", "tiny", "--out", str(tmp_path / "again")]
    environment = {**os.environ, "PYTHONHASHSEED": "7", "XDG_CACHE_HOME": str(tmp_path)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == f"{tmp_path / 'again'}\n"
    for name in ("model.safetensors", "tokenizer.json", "config.json", "chat_template.jinja"):
        first, second = ((root / name).read_bytes() for root in (model.directory, tmp_path / "again"))
        assert hashlib.sha256(first).digest() == hashlib.sha256(second).digest(), name
