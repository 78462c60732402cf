"""The access log: one line a request, and nothing of what was asked."""

import json
from pathlib import Path

import pytest

from neuron_pd.errors import UsageError
from neuron_pd.proxy.access_log import AccessLog
from neuron_pd.proxy.settings import Seen
from tests.proxy.conftest import CHAT, chat, running

LONG = "please tell me everything about the sea and the ships on it"


async def test_one_line_a_request_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "access.jsonl"
    async with running(seen=Seen(access_log=str(file))) as cluster:
        body = chat(LONG, conversation_id="secret-id")
        await cluster.post(body, CHAT + "?key=secret-query", Authorization="Bearer secret-key")
        second = chat(LONG, "the reply", "go on", conversation_id="secret-id")
        await cluster.post(second, Authorization="Bearer secret-key")
        await cluster.get("/health")
        await cluster.get("/nothing/" + "x" * 500)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["method"], line["path"][:20], line["status"]) for line in lines] == [
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/chat/completions", 200),
        ("GET", "/health", 200),
        ("GET", "/nothing/" + "x" * 11, 404),
    ]
    assert [line.get("turn", {}).get("path") for line in lines] == ["recompute", "read_back", None, None]
    assert lines[1]["turn"]["reused"] == 85
    assert lines[0]["bytes_in"] > 100
    assert all(line["ms"] >= 0 and line["time"].endswith("Z") for line in lines)
    assert len(lines[3]["path"]) == 200
    text = file.read_text()
    for secret in ("secret", "the sea", "the reply"):
        assert secret not in text


async def test_a_file_that_is_moved_away_is_made_anew(tmp_path: Path) -> None:
    file = tmp_path / "access.jsonl"
    async with running(seen=Seen(access_log=str(file))) as cluster:
        await cluster.get("/health")
        file.rename(tmp_path / "access.1")
        await cluster.get("/health")
    assert len(file.read_text().splitlines()) == 1
    assert len((tmp_path / "access.1").read_text().splitlines()) == 1


async def test_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    async with running(seen=Seen(access_log="-")) as cluster:
        await cluster.get("/health")
    assert json.loads(capsys.readouterr().out)["path"] == "/health"


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot write the access log"):
        AccessLog(str(tmp_path / "none" / "access.jsonl"))
