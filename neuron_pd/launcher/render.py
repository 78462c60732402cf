"""An engine's environment and command line as text: lines for a shell, or JSON."""

import json
import shlex

from neuron_pd.launcher.serve import ServeSpec

# A text is run more than once; an engine's id is used once.
FRESH_ID = '"$(cat /proc/sys/kernel/random/uuid)"'


def shell(spec: ServeSpec, fresh_engine_id: bool = True) -> str:
    """Lines for a POSIX shell: the exports, then the command with one flag a line.

    The engine's id is drawn anew each time the lines run, unless `fresh_engine_id` is false.
    """
    lines = [f"export {name}={shlex.quote(value)}" for name, value in spec.environment().items()]
    command = " \\\n  ".join(" ".join(map(shlex.quote, group)) for group in _groups(spec.argv()))
    if fresh_engine_id:
        command = command.replace(f'"{spec.engine_id}"', f"\"{spec.role}-'{FRESH_ID}'\"")
    return "\n".join([*lines, command])


def as_json(spec: ServeSpec) -> str:
    """{"environment": {name: text}, "argv": [text, …]}; the engine's id is for one start."""
    return json.dumps({"environment": spec.environment(), "argv": spec.argv()}, indent=2)


def _groups(argv: list[str]) -> list[list[str]]:
    """The command, then each flag with its value."""
    first = next((index for index, text in enumerate(argv) if text.startswith("--")), len(argv))
    groups = [argv[:first]]
    for text in argv[first:]:
        if text.startswith("--") or len(groups) == 1:
            groups.append([text])
        else:
            groups[-1].append(text)
    return groups
