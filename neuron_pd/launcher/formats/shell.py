"""Lines for bash: they run as they are, also under `set -euo pipefail`."""

import shlex
from collections.abc import Sequence
from typing import Final

from neuron_pd.launcher.notes import start_delay
from neuron_pd.launcher.serve import ServeSpec

# A text is run more than once; an engine's id is used once.
FRESH_ID: Final = '"$(cat /proc/sys/kernel/random/uuid)"'
PROLOGUE: Final = """set -euo pipefail
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM"""
EPILOGUE: Final = "wait -n  # the first that ends takes the others with it"


def shell(specs: Sequence[ServeSpec]) -> str:
    """The exports, then the command, one flag a line. Several engines start one after the other and end together."""
    if len(specs) == 1:
        return "\n".join([*comments(specs[0].notes), *_lines(specs[0])])
    blocks = [f"(\n{_block(spec)}\n) &\npids+=($!)" for spec in specs]
    return "\n".join([*comments(specs[0].notes), PROLOGUE, *blocks, EPILOGUE])


def comments(notes: Sequence[str]) -> list[str]:
    return [f"# {note}" for note in notes]


def command_lines(words: Sequence[str]) -> str:
    """The command, with each flag and its values on a line of their own."""
    return " \\\n  ".join(" ".join(map(shlex.quote, group)) for group in _groups(words))


def _block(spec: ServeSpec) -> str:
    delay = start_delay(spec.request, spec.instance)
    *exports, command = _lines(spec)
    return "\n".join([*([f"sleep {delay}"] if delay else []), *exports, f"exec {command}"])


def _lines(spec: ServeSpec) -> list[str]:
    exports = [f"export {name}={shlex.quote(value)}" for name, value in spec.environment().items()]
    command = command_lines(spec.argv())
    if spec.draws_id:
        command = command.replace(f'"{spec.engine_id}"', f"\"{spec.role}-'{FRESH_ID}'\"")
    return [*exports, command]


def _groups(argv: Sequence[str]) -> list[list[str]]:
    first = next((index for index, text in enumerate(argv) if text.startswith("--")), len(argv))
    groups = [list(argv[:first])]
    for text in argv[first:]:
        if text.startswith("--") or len(groups) == 1:
            groups.append([text])
        else:
            groups[-1].append(text)
    return groups
