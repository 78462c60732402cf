"""Claims and releases of leases, engine to engine, on NIXL's side channel.

P asks on the ZeroMQ address that the lease names, where upstream's NIXL scheduler already answers handshakes; so there
is no further port, and D answers from that thread, whether its engine is idle or computing.

    P → D   PREFIX + {"verb": "claim" | "release", "lease": L, "reader": R}     JSON
    D → P   {"deadline": D's clock, "seconds": as many from now} or {"refused": Refused}; {"released": n}

Upstream's own messages are MessagePack arrays and never begin with PREFIX. A lease's id is its capability: it is
random, and known to the router and the P that it gave it to.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import zmq
from vllm.logger import init_logger

from neuron_pd.core.lease import Refused

logger = init_logger("vllm.neuron_pd")

PREFIX = b"neuron-pd "
TIMEOUT_MILLISECONDS = 1000
MAX_MESSAGE_BYTES = 4096
PEERS_AT_ONCE = 4
Answer = Callable[[dict[str, Any]], dict[str, Any]]


class Peer(NamedTuple):
    """Where a lease's engine listens."""

    host: str
    port: int


class Granted(NamedTuple):
    """A claim that was granted: until when, on D's clock, and (not later than that) on ours."""

    deadline: float
    until: float


class AnsweringSocket:
    """A ROUTER socket that answers our messages and hands out all others."""

    def __init__(self, socket: Any, answer: Answer) -> None:
        self._socket = socket
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv_multipart(self, *args: Any, **kwargs: Any) -> list[bytes]:
        while True:
            frames: list[bytes] = self._socket.recv_multipart(*args, **kwargs)
            if len(frames) != 3 or not frames[2].startswith(PREFIX):
                return frames
            self._socket.send_multipart((*frames[:2], self._reply(frames[2].removeprefix(PREFIX))))

    def _reply(self, message: bytes) -> bytes:
        try:
            if len(message) > MAX_MESSAGE_BYTES:
                raise ValueError("too long")
            return json.dumps(self._answer(json.loads(message))).encode()
        except (ValueError, KeyError, TypeError) as error:
            return json.dumps({"refused": f"not understood: {error}"}).encode()


@contextmanager
def answering(opened: Any, answer: Answer) -> Iterator[AnsweringSocket]:
    """Upstream's listening socket, as its context manager `opened` makes it, with our messages taken out."""
    with opened as socket:
        yield AnsweringSocket(socket, answer)


class LeaseClient:
    """P's side: asks D's without holding up the engine. Threads and sockets are made when they are first needed."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(PEERS_AT_ONCE, thread_name_prefix="neuron_pd_claims")
        self._local = threading.local()

    def claim(self, peer: Peer, lease: str, reader: str) -> "Future[Granted | Refused]":
        """The future does not raise: a peer that cannot be asked has no lease for us."""
        return self._threads.submit(self._claim, peer, lease, reader)

    def release(self, peer: Peer, lease: str, reader: str) -> None:
        """Tell D that nobody will read. Where that is lost, the lease expires."""
        self._threads.submit(self._ask, peer, {"verb": "release", "lease": lease, "reader": reader})

    def close(self) -> None:
        """Stop asking."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _claim(self, peer: Peer, lease: str, reader: str) -> Granted | Refused:
        asked = time.perf_counter()
        answer = self._ask(peer, {"verb": "claim", "lease": lease, "reader": reader})
        try:
            return Granted(float(answer["deadline"]), asked + float(answer["seconds"]))
        except (KeyError, TypeError, ValueError):
            return Refused.TAKEN if answer.get("refused") == Refused.TAKEN else Refused.GONE

    def _ask(self, peer: Peer, message: dict[str, str]) -> dict[str, Any]:
        sockets: dict[Peer, Any] = self._local.__dict__.setdefault("sockets", {})
        socket = sockets.pop(peer, None)
        try:
            socket = socket or _connected(peer)
            socket.send(PREFIX + json.dumps(message).encode())
            answer = json.loads(socket.recv())
        except (zmq.ZMQError, ValueError) as error:
            logger.warning("neuron-pd: no answer about lease %s from %s:%d: %s", message["lease"], *peer, error)
            if socket is not None:
                socket.close(linger=0)  # else the question would still arrive
            return {}
        sockets[peer] = socket
        return answer if isinstance(answer, dict) else {}


def _connected(peer: Peer) -> Any:
    socket = zmq.Context.instance().socket(zmq.REQ)
    for option in (zmq.RCVTIMEO, zmq.SNDTIMEO):
        socket.setsockopt(option, TIMEOUT_MILLISECONDS)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 1 if ":" in peer.host else 0)
    socket.connect(f"tcp://[{peer.host}]:{peer.port}" if ":" in peer.host else f"tcp://{peer.host}:{peer.port}")
    return socket
