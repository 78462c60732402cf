"""Engines with vLLM's own connector behind the proxy: reuse that the proxy verifies, because nobody else does."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.e2e.servers import Pair, Proxy, Server

pytestmark = pytest.mark.e2e

SOURCE = " ".join(f"word{n}" for n in range(900))


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    logs = tmp_path_factory.mktemp("upstream")
    prefill = Server("prefill", logs / "prefill.log", connector="upstream")
    decode = Server("decode", logs / "decode.log", connector="upstream")
    kept = ("--decoder-kv-blocks-ttl", "480")
    with Pair(prefill, decode), Proxy([prefill], [decode], logs / "proxy.log", *kept) as proxy:
        yield proxy


def test_a_conversation_reads_back(proxy: Proxy) -> None:
    name, messages = uuid4().hex, [{"role": "user", "content": SOURCE[:2000]}]
    hits = proxy.metric('neuron_pd_proxy_reuse_total{outcome="offered"')
    for turn in range(3):
        expected = proxy.cold(messages)
        reply, _ = proxy.chat(messages, conversation_id=name)
        assert reply == expected
        assert proxy.metric('neuron_pd_proxy_reuse_total{outcome="offered"') == hits + turn
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": f"and then, {turn}?"}]


def test_an_edited_history_is_answered_rightly(proxy: Proxy) -> None:
    """vLLM's own P would compute on with the KV of the history as it was."""
    name, messages = uuid4().hex, [{"role": "user", "content": SOURCE[3000:5000]}]
    reply, _ = proxy.chat(messages, conversation_id=name)
    edited = [{"role": "user", "content": "unlike " + SOURCE[3000:5000]}, {"role": "assistant", "content": reply}]
    edited += [{"role": "user", "content": "go on"}]
    assert proxy.chat(edited, conversation_id=name)[0] == proxy.cold(edited)
