"""`neuron-pd key`."""

from pathlib import Path

from click.testing import CliRunner

from neuron_pd.cli.key import command
from neuron_pd.proxy.keyfile import read_keys


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_new_and_list(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    key = run("new", "--file", str(path), "--tenant", "acme", "--model", "qwen", "--label", "ci").strip()
    run("new", "--file", str(path), "--tenant", "other")
    file = read_keys(path)
    assert file.digest(key.encode()) == file.entries[0].digest
    listed = run("list", "--file", str(path))
    assert [line.split()[1:] for line in listed.splitlines()] == [["acme", "qwen", "ci"], ["other", "all", "models"]]
    assert key not in listed
