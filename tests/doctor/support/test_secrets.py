"""No secret's value survives, however it is written and wherever it stands."""

import json
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neuron_pd.doctor.support import archive
from neuron_pd.doctor.support.secrets import MARK, SHORTEST, Secrets, is_secret, secrets_of
from neuron_pd.errors import UsageError

NAMES = ("NEURON_PD_CONTROL_TOKEN", "VLLM_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "NEURON_PD_STORE_PASSWORD")
# How a value gets into a log, a JSON file, a command line.
WRITTEN: tuple[Callable[[str], str], ...] = (
    str,
    json.dumps,
    lambda value: json.dumps({"a": [value]}, ensure_ascii=False),
    lambda value: repr({"api_key": [value]}),
    lambda value: f"https://host/?key={quote(value, safe='')}",
    lambda value: f"Authorization: Bearer {value}",
    lambda value: f"--api-key {value} --port 8000",
)
values = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=SHORTEST).filter(
    lambda value: value == value.strip() and value not in MARK
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(NAMES), values, min_size=1), st.data())
def test_no_value_survives_in_the_archive(environ: dict[str, str], data: st.DataObject) -> None:
    surroundings = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    pieces = []
    for value in environ.values():
        for write in data.draw(st.lists(st.sampled_from(WRITTEN), min_size=1, max_size=3)):
            pieces += [data.draw(surroundings), write(value), data.draw(surroundings)]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "report.tar.gz"
        archive.write(path, {"a.log": "".join(pieces), "b.json": json.dumps(pieces)}, secrets_of(environ))
        with tarfile.open(path) as opened:
            texts = [member.read().decode() for entry in opened if (member := opened.extractfile(entry))]
    assert len(texts) == 2
    for value in environ.values():
        assert all(value not in text for text in texts)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer s3cr3t-value",
        'curl -H "authorization: basic s3cr3t-value"',
        "vllm serve x --api-key s3cr3t-value --port 1",
        "vllm serve x --api-key=s3cr3t-value",
        "non-default args: {'port': 8200, 'api_key': ['s3cr3t-value'], 'model': 'x'}",
        '{"password": "s3cr3t-value"}',
        "x-neuron-pd-token: s3cr3t-value",
        "redis://user:s3cr3t-value@cache.internal:6379/0",
        "redis://:s3cr3t-value@cache.internal",
        "HF_TOKEN=s3cr3t-value",
        "npd-s3cr3t-value-s3cr3t-value",
        "vllm serve x --api-key s3cr3t-one s3cr3t-two 's3cr3t three' --port 1",
        "non-default args: {'api_key': ['s3cr3t-one', 's3cr3t-two'], 'model': 'x'}",
        "Namespace(api_key=['s3cr3t-one', 's3cr3t-two'], port=1)",
        "['vllm', 'serve', '--api-key', 's3cr3t-one', 's3cr3t-two', '--port', '1']",
        "AWS_SECRET_ACCESS_KEY=s3cr3t-value",
        "redis://user:s3cr3t@s3cr3t@cache.internal/0",
    ],
)
def test_what_looks_like_a_secret_is_removed_though_it_is_not_known(text: str) -> None:
    assert "s3cr3t" not in Secrets([]).without(text)


def test_what_stands_beside_a_secret_stays() -> None:
    text = "non-default args: {'api_key': ['a', 'b'], 'model': 'x'}"
    assert Secrets([]).without(text) == f"non-default args: {{'api_key': ['{MARK}'], 'model': 'x'}}"
    assert json.loads(Secrets([]).without('{"api_key": "a", "model": "x"}')) == {"api_key": MARK, "model": "x"}
    lines = "serve --api-key a b --port 1\nINFO 11-30 10:59:38 ready"
    assert Secrets([]).without(lines) == f"serve --api-key {MARK} --port 1\nINFO 11-30 10:59:38 ready"
    assert Secrets([]).without("--api-key a\nready") == f"--api-key {MARK}\nready"


@pytest.mark.parametrize(
    "text",
    [
        "--max-num-batched-tokens 8192 --served-model-name Qwen",
        "prompt=464 offered=384 verified=384 reused=384",
        "KV Transfer metrics: Num successful transfers=3, Avg xfer time (ms)=11.475",
        '{"url": "http://10.0.0.1:8100", "block_size": 128, "kv_recompute_threshold": 64}',
        "tokens: 1152, blocks of 128 tokens here, 16 at http://127.0.0.1:8100",
        "--middleware neuron_pd.connector.control.ControlPath",
        "NEURON_PD_CONTROL_TOKEN_FILE=/home/ubuntu/control-token",
        "INFO 11-30 10:59:38 [reuse.py:266] neuron-pd: turn request=cmpl-a3b628a105ab626f-0-a68d8487",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Secrets([]).without(text) == text


def test_long_runs_of_a_log_take_no_longer_than_their_length() -> None:
    text = "a" * 2**20 + "-" * 2**16 + "api_key" * 2**10 + "://" * 2**12
    began = time.process_time()
    Secrets(["some-value"]).without(text)
    assert time.process_time() - began < 5


def test_names() -> None:
    assert all(map(is_secret, (*NAMES, "NEURON_PD_CONTROL_TOKEN", "OPENAI_API_KEY", "KEY", "DB_PASSWD", "npm_auth")))
    others = (
        "PATH",
        "NEURON_PD_CONTROL_TOKEN_FILE",
        "MONKEY",
        "TOKENIZERS_PARALLELISM",
        "GIT_AUTHOR_NAME",
        "SSH_AUTH_SOCK",
    )
    assert not any(map(is_secret, others))


def test_files_named_variables_and_the_longer_of_two(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    secrets = secrets_of({"MINE": "named-value", "OTHER": "kept"}, [tmp_path / "token", tmp_path / "none"], ["MINE"])
    assert secrets.without("from-a-file named-value kept") == f"{MARK} {MARK} kept"
    assert Secrets(["abcd", "abcdefgh"]).without("abcdefgh") == MARK
    assert Secrets([" with-a-line-end\n"]).without("with-a-line-end") == MARK


def test_the_archive_is_this_users(tmp_path: Path) -> None:
    path = tmp_path / "r.tar.gz"
    archive.write(path, {"a/b.txt": "text \udc80"}, Secrets([]))
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as opened:
        (entry,) = opened.getmembers()
        assert entry.name == "r/a/b.txt"
        member = opened.extractfile(entry)
        assert member is not None
        assert member.read() == b"text \\udc80"
    with pytest.raises(UsageError, match="choose another --out"):
        archive.write(tmp_path / "nowhere" / "r.tar.gz", {}, Secrets([]))
    with pytest.raises(UsageError, match="File exists; choose another --out"):  # whose rights may be others
        archive.write(path, {}, Secrets([]))
