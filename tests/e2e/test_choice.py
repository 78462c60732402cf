"""Where a turn is served, on real engines: by D alone, or by another D than before. The answer is the same."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.e2e.asking import TOKEN
from tests.e2e.servers import Proxy, Server

pytestmark = pytest.mark.e2e

SOURCE = " ".join(f"word{n}" for n in range(900))
Messages = list[dict[str, str]]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[Server]]]:
    logs = tmp_path_factory.mktemp("choice")
    prefill = Server("prefill", logs / "prefill.log")
    decode = [Server("decode", logs / f"decode-{index}.log", index=index) for index in range(2)]
    every = [prefill, *decode]
    try:
        for server in every:
            server.start()
        for server in every:
            server.wait()
        yield prefill, decode
    finally:
        for server in every:
            server.stop()


def conversation(place: int) -> Messages:
    return [{"role": "user", "content": SOURCE[place : place + 2000]}]


def answered(messages: Messages, reply: str) -> Messages:
    return [*messages, {"role": "assistant", "content": reply}, {"role": "user", "content": "and then?"}]


def test_a_turn_that_d_serves_alone_is_answered_as_p_and_d_would(
    engines: tuple[Server, list[Server]], tmp_path: Path
) -> None:
    prefill, (decode, _) = engines
    with Proxy([prefill], [decode], tmp_path / "proxy.log", "--direct", "always") as proxy:
        name, messages = uuid4().hex, conversation(100)
        for turn in range(4):
            reply, report = proxy.chat(messages, conversation_id=name)
            assert reply == proxy.cold(messages)
            assert report["path"] == ("direct" if turn else "recompute")
            messages = answered(messages, reply)
        assert proxy.metric('neuron_pd_proxy_turns_total{path="direct"}') == 3
    assert decode.settled()["kv_blocks_used"] == 0


def test_a_conversation_moves_to_another_d_with_its_kv(engines: tuple[Server, list[Server]], tmp_path: Path) -> None:
    prefill, decode = engines
    with Proxy([prefill], decode, tmp_path / "proxy.log") as proxy:
        name, messages = uuid4().hex, conversation(900)
        reply, _ = proxy.chat(messages, conversation_id=name)
        first = next(server for server in decode if server.stats()["ledger_records"])
        (second,) = (server for server in decode if server is not first)
        drained = proxy.http.post(
            f"{proxy.url}/neuron_pd/v1/engines/drain", json={"url": first.url}, headers={"x-neuron-pd-token": TOKEN}
        )
        assert drained.status_code == 200, drained.text
        for holder in (first, second):  # its KV comes from the old D once, then from the new one
            messages, records = answered(messages, reply), second.stats()["ledger_records"]
            leases = holder.stats()["leases_read"]
            reply, report = proxy.chat(messages, conversation_id=name)
            assert reply == proxy.cold(messages)
            assert (report["path"], int(report["reused"]) > 0) == ("read_back", True)
            assert holder.stats()["leases_read"] == leases + 1
            assert second.stats()["ledger_records"] > records
    for server in decode:
        assert server.settled()["kv_blocks_used"] == 0
