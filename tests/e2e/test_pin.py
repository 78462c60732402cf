"""Pin mode on real engines: metadata in every kind of reply, single use, renewal, expiry, the budget."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from neuron_pd.core.transfer import first_leg, second_leg
from tests.e2e.servers import Pair, Proxy, Server

pytestmark = pytest.mark.e2e

TTL = 6.0
SOURCE = " ".join(f"word{n}" for n in range(900))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    logs = tmp_path_factory.mktemp("pin")
    prefill = Server("prefill", logs / "prefill.log", retention="pin")
    decode = Server("decode", logs / "decode.log", retention="pin", decoder_kv_blocks_ttl=TTL)
    with Pair(prefill, decode) as made:
        yield made


@pytest.fixture
def turn(pair: Pair) -> tuple[dict[str, Any], str, str]:
    """What D said of a finished turn, the next prompt, and the answer to that without reuse."""
    prompt = SOURCE[500:2500]
    longer_by = SOURCE[:200]
    expected = pair.cold(prompt + pair.cold(prompt) + longer_by)
    reply, _, kept = pair.turn(prompt, handle=uuid4().hex)
    assert kept is not None
    return kept, prompt + reply + longer_by, expected


def test_the_metadata_is_read_back_once(pair: Pair, turn: tuple[dict[str, Any], str, str]) -> None:
    kept, prompt, expected = turn
    reply, report, _ = pair.turn(prompt, dict(kept))
    assert (reply, report["path"]) == (expected, "read_back")
    assert report["reused"] == kept["remote_num_tokens"]
    reply, report, _ = pair.turn(prompt, dict(kept))
    assert (reply, report["path"], report["reason"]) == (expected, "recompute", "lease_gone")


def test_a_turn_after_its_time_is_computed_and_answered(pair: Pair, turn: tuple[dict[str, Any], str, str]) -> None:
    kept, prompt, expected = turn
    time.sleep(TTL + 1)
    reply, report, _ = pair.turn(prompt, dict(kept))
    assert (reply, report["path"], report["reason"]) == (expected, "recompute", "lease_gone")


def test_a_conversation_that_lives_is_renewed(pair: Pair, turn: tuple[dict[str, Any], str, str]) -> None:
    kept, prompt, expected = turn
    for _ in range(3):
        time.sleep(TTL / 2)
        renewed = pair.decode.control("renew", {"handle": kept["neuron_pd_handle"]})
        assert (renewed.status_code, renewed.json()["renewed"]) == (200, 1)
    reply, report, _ = pair.turn(prompt, dict(kept))
    assert (reply, report["path"]) == (expected, "read_back")


def test_a_conversation_that_ends_is_let_go(pair: Pair, turn: tuple[dict[str, Any], str, str]) -> None:
    kept, prompt, expected = turn
    before = pair.decode.stats()["retained_blocks"]
    assert pair.decode.control("release", {"handle": kept["neuron_pd_handle"]}).json() == {"released": 1}
    assert pair.decode.stats()["retained_blocks"] < before
    reply, report, _ = pair.turn(prompt, dict(kept))
    assert (reply, report["reason"]) == (expected, "lease_gone")


def streamed(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a streamed reply."""
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 8, "ignore_eos": True, "stream": True, **body}
    with server.http.stream("POST", f"{server.url}{path}", json=asked) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_streamed_reply_carries_the_metadata_in_its_finish_chunk(pair: Pair, path: str) -> None:
    text = SOURCE[100:1500]
    body: dict[str, Any] = (
        {"prompt": text} if path == "/v1/completions" else {"messages": [{"role": "user", "content": text}]}
    )
    asked = {"model": "tiny", "max_tokens": 1, "temperature": 0, **body, "kv_transfer_params": first_leg()}
    prefilled = pair.prefill.http.post(f"{pair.prefill.url}{path}", json=asked).json()["kv_transfer_params"]
    chunks = streamed(pair.decode, path, {**body, "kv_transfer_params": second_leg(prefilled, "streamed")})
    carrying = [chunk for chunk in chunks if chunk.get("kv_transfer_params")]
    assert len(carrying) == 1
    assert carrying[0]["choices"][0]["finish_reason"] == "length"
    assert carrying[0]["kv_transfer_params"]["neuron_pd_handle"] == "streamed"
    assert all(chunk["choices"] for chunk in chunks)


def test_a_reply_cut_by_a_stop_string_is_an_ordinary_miss(pair: Pair) -> None:
    prompt = SOURCE[700:2000]
    word = pair.cold(prompt).split()[1]
    _, _, kept = pair.turn(prompt, handle="stopped", stop=[word])
    assert kept is None
    lease = pair.acquire("stopped")  # what it computed can still be leased
    assert pair.decode.control("release", {"lease": lease["remote_request_id"]}).json() == {"released": 1}


def test_idle_conversations_leave_room_and_nothing_in_the_end(pair: Pair) -> None:
    for n in range(4):
        pair.turn(SOURCE[n * 50 : n * 50 + 800], handle=f"idle-{n}", tokens=4)
    info, stats = pair.decode.control("info").json(), pair.decode.stats()
    assert 0 < stats["retained_blocks"] <= info["kv_blocks"] / 2 + 1
    time.sleep(TTL + 1)
    stats = pair.decode.settled()
    assert (stats["retained_blocks"], stats["open_leases"], stats["kv_blocks_used"]) == (0, 0, 0)


def test_the_engines_own_metrics_tell_what_happened(pair: Pair, turn: tuple[dict[str, Any], str, str]) -> None:
    kept, prompt, _ = turn
    pair.turn(prompt, dict(kept))
    on_p = pair.prefill.http.get(f"{pair.prefill.url}/metrics").text
    on_d = pair.decode.http.get(f"{pair.decode.url}/metrics").text
    assert 'path="read_back",reason="verified"' in on_p
    assert "neuron_pd_read_back_bytes_sum" in on_p
    assert "neuron_pd_pins_total{" in on_d
    assert 'end="read"' in on_d
    assert "neuron_pd_ledger_bytes{" in on_d


def test_a_conversation_behind_the_proxy_holds_its_last_turn_only(pair: Pair, tmp_path: Path) -> None:
    with Proxy([pair.prefill], [pair.decode], tmp_path / "proxy.log", "--conversation-ttl", "5") as proxy:
        time.sleep(TTL + 1)  # what others left is over
        pair.decode.settled()
        name, messages = uuid4().hex, [{"role": "user", "content": SOURCE[1000:3000]}]
        for turn in range(3):
            reply, report = proxy.chat(messages, conversation_id=name)
            assert report["path"] == ("read_back" if turn else "recompute")
            retained = pair.decode.stats()["retained_blocks"]
            assert 0 < retained <= int(report["prompt"]) // 128 + 1  # the turns before were let go of
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": f"and then, {turn}?"}]
        proxy.http.delete(f"{proxy.url}/neuron_pd/v1/conversations/{name}").raise_for_status()
        assert pair.decode.settled()["retained_blocks"] == 0
        assert [proxy.cold(messages[:end]) for end in (1, 3, 5)] == [messages[end]["content"] for end in (1, 3, 5)]
