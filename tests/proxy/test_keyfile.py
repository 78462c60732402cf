"""The file of API keys."""

import json
from pathlib import Path

import pytest
import yaml

from neuron_pd.errors import UsageError
from neuron_pd.proxy.keyfile import add_key, read_keys

SALT, DIGEST = "ab" * 16, "cd" * 32


def test_keys_that_were_made_are_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    keys = [add_key(path, "acme", ["qwen", "qwen-*"], "ci"), add_key(path, "acme"), add_key(path, "other: #1")]
    file = read_keys(path)
    assert [entry.tenant for entry in file.entries] == ["acme", "acme", "other: #1"]
    assert [entry.models for entry in file.entries] == [("qwen", "qwen-*"), None, None]
    assert [file.digest(key.encode()) for key in keys] == [entry.digest for entry in file.entries]
    assert len(set(keys)) == 3
    assert all(len(key) >= 43 for key in keys)
    assert not any(key in path.read_text() for key in keys)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_stands_in_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"# ours\nsalt: {SALT}\nkeys:\n- tenant: acme # the first\n  digest: {DIGEST}\n")
    path.chmod(0o640)
    add_key(path, "b")
    assert path.read_text().startswith("# ours\n")
    assert "acme # the first" in path.read_text()
    assert [entry.tenant for entry in read_keys(path).entries] == ["acme", "b"]
    assert path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(UsageError, match="cannot write"):
        add_key(tmp_path / "none" / "keys.yaml", "x")


def test_json_is_yaml(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"salt": SALT, "keys": [{"tenant": "a", "digest": DIGEST}]}))
    assert read_keys(path).entries[0].digest == bytes.fromhex(DIGEST)
    add_key(path, "b")
    assert [entry.tenant for entry in read_keys(path).entries] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "list of keys"),
        ("[]", "list of keys"),
        ("a: [", "not YAML"),
        ("keys: []", "salt"),
        (f"salt: {SALT}\nkeys: [x]", "key 1 is not"),
        (f"salt: {SALT}\nkeys: [{{digest: {DIGEST}}}]", "key 1 has no tenant"),
        (f"salt: {SALT}\nkeys: [{{tenant: a}}]", "key 1 is not hex"),
        (f"salt: {SALT}\nkeys: [{{tenant: a, digest: zz}}]", "key 1 is not hex"),
        (f"salt: {SALT}\nkeys: [{{tenant: a, digest: {DIGEST}, key: secret}}]", "'key'"),
        (f"salt: {SALT}\nkeys: [{{tenant: a, digest: {DIGEST}, models: qwen}}]", "models"),
        (f"salt: {SALT}\nkeys: [{{tenant: a, digest: {DIGEST}}}, {{tenant: b, digest: {DIGEST}}}]", "twice"),
    ],
)
def test_what_is_no_file_of_keys(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_keys(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_keys(tmp_path / "none")


def test_an_emptied_file_takes_keys_again(tmp_path: Path) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text(f"salt: {SALT}\nkeys: []\n")
    add_key(path, "a")
    assert len(yaml.safe_load(path.read_text())["keys"]) == 1
