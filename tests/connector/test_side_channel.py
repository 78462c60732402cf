"""Claims over real sockets."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import zmq
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.utils import zmq_ctx

from neuron_pd.connector import side_channel
from neuron_pd.connector.side_channel import PREFIX, Granted, LeaseClient, Peer, answering
from neuron_pd.core.lease import Refused

pytestmark = pytest.mark.vllm


class Upstream(threading.Thread):
    """A listener as upstream's is: it echoes what it is given, until it is told to stop."""

    def __init__(self, answer: Any) -> None:
        super().__init__(daemon=True)
        self.answer, self.got = answer, []
        self.ready, self.stop = threading.Event(), threading.Event()

    def run(self) -> None:
        with answering(zmq_ctx(zmq.ROUTER, "tcp://127.0.0.1:0"), self.answer) as socket:
            self.port = int(socket.getsockopt(zmq.LAST_ENDPOINT).decode().rsplit(":", 1)[1])
            socket.setsockopt(zmq.RCVTIMEO, 50)
            self.ready.set()
            while not self.stop.is_set():
                try:
                    identity, _, message = socket.recv_multipart()
                except zmq.Again:
                    continue
                self.got.append(message)
                socket.send_multipart((identity, b"", message))


@contextmanager
def listening(answer: Any) -> Iterator[Upstream]:
    upstream = Upstream(answer)
    upstream.start()
    assert upstream.ready.wait(10)
    try:
        yield upstream
    finally:
        upstream.stop.set()
        upstream.join()


def ask(port: int, message: bytes) -> bytes:
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.setsockopt(zmq.RCVTIMEO, 5000)
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send(message)
        return socket.recv()


@pytest.fixture
def client() -> Iterator[LeaseClient]:
    made = LeaseClient()
    yield made
    made.close()


def test_a_claim_is_answered_and_a_release_arrives(client: LeaseClient) -> None:
    seen: list[dict[str, Any]] = []
    arrived = threading.Event()

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        seen.append(message)
        if message["verb"] == "release":
            arrived.set()
        return {"deadline": 500.0, "seconds": 30.0}

    with listening(answer) as upstream:
        peer = Peer("127.0.0.1", upstream.port)
        granted = client.claim(peer, "lease", "p/r").result(10)
        assert isinstance(granted, Granted)
        assert granted.deadline == 500.0
        client.release(peer, "lease", "p/r")
        assert arrived.wait(10)
    assert [(message["verb"], message["lease"], message["reader"]) for message in seen] == [
        ("claim", "lease", "p/r"),
        ("release", "lease", "p/r"),
    ]
    assert upstream.got == []


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        ({"refused": "taken"}, Refused.TAKEN),
        ({"refused": "gone"}, Refused.GONE),
        ({"deadline": "soon"}, Refused.GONE),
        ([], Refused.GONE),
    ],
)
def test_whatever_is_not_a_grant_is_a_refusal(client: LeaseClient, said: Any, understood: Refused) -> None:
    with listening(lambda message: said) as upstream:
        assert client.claim(Peer("127.0.0.1", upstream.port), "lease", "r").result(10) is understood


def test_upstream_s_own_messages_pass_and_ours_that_make_no_sense_are_answered() -> None:
    def answer(message: dict[str, Any]) -> dict[str, Any]:
        return {"deadline": message["lease"]}

    with listening(answer) as upstream:
        assert ask(upstream.port, b"\x93\xa8get_meta\x00\x00") == b"\x93\xa8get_meta\x00\x00"
        for nonsense in (b"", b"{", b"[1]", b'{"verb": "claim"}', b'"' + b"x" * 5000 + b'"'):
            assert json.loads(ask(upstream.port, PREFIX + nonsense))["refused"].startswith("not understood")
        assert ask(upstream.port, b"again") == b"again"


def test_a_peer_that_does_not_answer_is_refused_in_time(client: LeaseClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_channel, "TIMEOUT_MILLISECONDS", 100)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        assert client.claim(Peer("127.0.0.1", port), "lease", "r").result(10) is Refused.GONE
        assert silent.recv_multipart()[2].startswith(PREFIX)


def test_a_peer_that_comes_back_is_asked_again(client: LeaseClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_channel, "TIMEOUT_MILLISECONDS", 300)
    with listening(lambda message: {"deadline": 1.0, "seconds": 1.0}) as upstream:
        peer = Peer("127.0.0.1", upstream.port)
        assert isinstance(client.claim(peer, "lease", "r").result(10), Granted)
    assert client.claim(peer, "lease", "r").result(10) is Refused.GONE
    with zmq.Context() as context, context.socket(zmq.ROUTER) as again:
        again.bind(f"tcp://127.0.0.1:{peer.port}")
        monkeypatch.setattr(side_channel, "TIMEOUT_MILLISECONDS", 10_000)
        answered = client.claim(peer, "lease", "r")
        frames = again.recv_multipart()
        again.send_multipart((*frames[:2], b'{"deadline": 2.0, "seconds": 1.0}'))
        assert isinstance(answered.result(10), Granted)
