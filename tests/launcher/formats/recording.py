"""A recorder in place of vLLM: it prints what it was started with."""

import json
import subprocess
import sys
from pathlib import Path

from hypothesis import strategies as st

PROGRAM = f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"

SPECIAL = (
    "'", '"', "$(id)", "`id`", "$HOME", "a\nb", "\\", "a b", "# x", "*", "~", "!!", "%h", "${x}", "-x", "é", "{}", ";",
)  # fmt: skip
# What a shell, systemd and YAML could take for something else, and anything else but NUL, which no argument can hold.
hostile = st.one_of(
    st.sampled_from(SPECIAL),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
)


def recorder(directory: Path, name: str = "vllm") -> Path:
    """The recorder as a program of that name."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / name
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return program


def run_as_shell(text: str, path: Path) -> list[tuple[list[str], dict[str, str]]]:
    """What the recorder got, each time that it was started, when bash runs the text with `path` first on its PATH."""
    environment = {"PATH": f"{path}:/usr/bin:/bin"}
    command = ["bash", "-euo", "pipefail", "-c", text]
    result = subprocess.run(command, capture_output=True, check=True, env=environment)
    return [(argv, got) for argv, got in map(json.loads, result.stdout.splitlines())]
