"""`neuron-pd report` as a person runs it."""

import json
import re
import tarfile
from pathlib import Path

from tests.cli.launching import shell as shell_fixture
from tests.cli.running import Shell

shell = shell_fixture
DOCS = Path(__file__).parents[2] / "docs"


def contents(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        files = {entry.name.partition("/")[2]: archive.extractfile(entry) for entry in archive}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def test_one_archive_without_secrets(shell: Shell) -> None:
    state = shell.home / "state" / "neuron-pd"
    run = state / "runs" / "20261130-105900-1"
    run.mkdir(parents=True)
    (state / "control-token").write_text("tok-of-this-user\n")
    (run / "decode.log").write_text("INFO 11-30 10:59:38 [x.py:1] tok-of-this-user, client-key, vllm's-key\n")
    out = shell.home / "mine.tar.gz"
    argv = ("report", "--instance", "cpu", "--role", "proxy", "--api-key-env", "MINE", "--out", str(out))
    result = shell.run(*argv, MINE="client-key", VLLM_API_KEY="vllm's-key", FI_PROVIDER="efa")
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{out}\n"
    files = contents(out)
    assert {"doctor.json", "versions.txt", "configuration/environment.json", "logs/decode.log"} <= set(files)
    assert json.loads(files["doctor.json"])["of"] == ["profile cpu as proxy"]
    assert json.loads(files["configuration/environment.json"])["FI_PROVIDER"] == "efa"
    assert "[removed], [removed], [removed]" in files["logs/decode.log"]
    everything = "".join(files.values())
    assert not re.search("tok-of-this-user|client-key|vllm's-key", everything)


def test_without_logs_it_is_written_all_the_same(shell: Shell) -> None:
    out = shell.home / "none.tar.gz"
    result = shell.run("report", "--role", "proxy", "--out", str(out), PATH=str(shell.home))
    assert result.returncode == 0, result.stderr
    assert not [name for name in contents(out) if name.startswith("logs/")]


def test_logs_that_are_not_there(shell: Shell) -> None:
    assert "there is no log /nowhere.log" in shell.refused("report", "--logs", "/nowhere.log")
