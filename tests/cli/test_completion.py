import shutil
import subprocess
from pathlib import Path

import pytest

from neuron_pd.cli import COMMANDS
from neuron_pd.cli.completion import SHELLS
from tests.cli.running import program


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH with this interpreter's neuron-pd."""
    program(tmp_path)
    return f"{tmp_path}:/usr/bin:/bin"


def run(path: str, shell: str) -> "subprocess.CompletedProcess[str]":
    command = ["neuron-pd", "completion", shell]
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=False)


def completed(path: str, *words: str) -> list[str]:
    """What bash would offer for the last of `words`."""
    script = f"""set -e; eval "$(neuron-pd completion bash)"
    complete -p neuron-pd >/dev/null
    COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1}
    _neuron_pd_completion neuron-pd; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", script], env={"PATH": path}, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_options_and_choices(path: str) -> None:
    assert completed(path, "neuron-pd", "pro") == ["proxy"]
    assert set(completed(path, "neuron-pd", "")) == set(COMMANDS)
    assert completed(path, "neuron-pd", "proxy", "--prefill-t") == ["--prefill-timeout"]
    assert completed(path, "neuron-pd", "completion", "f") == ["fish"]


@pytest.mark.parametrize("shell", SHELLS)
def test_what_is_printed_is_that_shells(shell: str, path: str) -> None:
    done = run(path, shell)
    assert f"_NEURON_PD_COMPLETE={shell}_complete" in done.stdout
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not here")
    subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True)


def test_another_shell_is_a_usage_error(path: str) -> None:
    done = run(path, "tcsh")
    assert done.returncode == 2
    assert "'tcsh' is not one of 'bash', 'zsh', 'fish'" in done.stderr
