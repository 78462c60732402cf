"""vLLM's `generate_conversations` files: conversations whose numbers are drawn and whose text comes from files."""

from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

from neuron_pd.bench.text import Ruler
from neuron_pd.bench.workloads.dialogue import Dialogue, Sizes, Turn
from neuron_pd.bench.workloads.distributions import Sampler, sampler
from neuron_pd.errors import UsageError

FILETYPE = "generate_conversations"
TASK = "Continue this text, and say what it leaves out: "


class Generated:
    """The recipe of one file. `num_turns` counts questions and answers, as vLLM does: two of them are one turn."""

    sized = timed = False

    def __init__(self, body: Mapping[str, Any], path: Path) -> None:
        """Text files are looked for beside `path`, then in the working folder. UsageError when it cannot be used."""
        wanted, given = (_section(body, name, path) for name in ("prompt_input", "prompt_output"))
        nothing = {"distribution": "constant", "value": 0}
        self._turns = sampler(wanted.get("num_turns"), f"{path}: prompt_input.num_turns")
        self._common = sampler(wanted.get("common_prefix_num_tokens", nothing), f"{path}: common_prefix_num_tokens")
        self._prefix = sampler(wanted.get("prefix_num_tokens"), f"{path}: prompt_input.prefix_num_tokens")
        self._input = sampler(wanted.get("num_tokens"), f"{path}: prompt_input.num_tokens")
        self._output = sampler(given.get("num_tokens"), f"{path}: prompt_output.num_tokens")
        self._count = body.get("num_conversations")
        if not isinstance(self._count, int) or self._count < 1:
            raise UsageError(f"{path}: num_conversations must be a whole number above 0")
        self._text = "\n".join(_read(Path(name), path) for name in body.get("text_files") or ())
        if not self._text:
            raise UsageError(f"{path}: text_files names no text to make prompts of")

    async def dialogues(self, ruler: Ruler, key: str, sizes: Sizes, count: int | None) -> list[Dialogue]:
        random = Random(key)
        common = self._common(random)
        shared = await self._slice(ruler, 0, common) if common else ""
        return [await self._dialogue(ruler, random, shared, index) for index in range(count or self._count or 1)]

    async def _dialogue(self, ruler: Ruler, random: Random, shared: str, index: int) -> Dialogue:
        turns = max(1, (self._turns(random) + 1) // 2)
        at = random.randrange(len(self._text))
        prefix = await self._slice(ruler, at, tokens) if (tokens := self._prefix(random)) > 0 else ""
        made = []
        for turn in range(turns):
            question = await self._slice(ruler, at + 997 * (turn + 1), _at_least_one(self._input, random))
            # The conversation's number keeps two conversations from sharing more than the common prefix.
            opening = f"{shared}Conversation {index}. {prefix}\n" if turn == 0 else ""
            content = f"{opening}{TASK}{question}"
            made.append(Turn(({"role": "user", "content": content},), _at_least_one(self._output, random)))
        return Dialogue(tuple(made))

    async def _slice(self, ruler: Ruler, at: int, tokens: int) -> str:
        """`tokens` tokens of the text from character `at` on; it begins again where it ends."""

        def source(chars: int) -> str:
            start = at % len(self._text)
            times = (start + chars) // len(self._text) + 1
            return (self._text * times)[start : start + chars]

        return await ruler.fit(source, tokens)


def _at_least_one(draw: Sampler, random: Random) -> int:
    return max(1, draw(random))


def _section(body: Mapping[str, Any], name: str, path: Path) -> Mapping[str, Any]:
    section = body.get(name)
    if not isinstance(section, Mapping):
        raise UsageError(f"{path}: {name} is missing")
    return section


def _read(name: Path, beside: Path) -> str:
    path = next((found for found in (beside.parent / name, name) if found.is_file()), None)
    if path is None:
        raise UsageError(f"{beside}: there is no text file {name}, neither beside it nor in this folder")
    return path.read_text(encoding="utf-8", errors="replace")
