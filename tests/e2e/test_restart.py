"""Engines that die and come back under their old ids, and a peer that vanishes while it is read."""

import os
import signal
import threading
from collections.abc import Iterator
from uuid import uuid4

import psutil
import pytest

from tests.e2e.servers import Pair, Server

pytestmark = pytest.mark.e2e

SOURCE = " ".join(f"word{n}" for n in range(900))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    logs = tmp_path_factory.mktemp("restart")
    prefill = Server("prefill", logs / "prefill.log", engine_id="prefill-engine-001")
    decode = Server("decode", logs / "decode.log", engine_id="decode-engine-001")
    with Pair(prefill, decode) as made:
        yield made


def replaced(server: Server) -> None:
    server.stop(signal.SIGKILL)
    server.start().wait()


def conversation(pair: Pair) -> tuple[str, str, str]:
    """A finished turn's handle, the next prompt, and its answer without reuse."""
    handle, prompt = uuid4().hex, SOURCE[300:2300]
    reply = pair.turn(prompt, handle=handle)[0]
    longer = prompt + reply + SOURCE[:100]
    return handle, longer, pair.cold(longer)


def test_a_prefill_engine_that_restarts_is_used_again(pair: Pair) -> None:
    handle, prompt, expected = conversation(pair)
    replaced(pair.prefill)
    reply, report, _ = pair.turn(prompt, pair.acquire(handle))
    assert (reply, report["path"]) == (expected, "read_back")
    handed_off = hand_offs(pair.decode)
    reply, report, _ = pair.turn(prompt, pair.acquire(handle))
    assert (reply, report["path"]) == (expected, "read_back")
    assert hand_offs(pair.decode) > handed_off  # D has met the new P


def hand_offs(decode: Server) -> float:
    """Hand-offs that D has pulled, by its own metrics."""
    return decode.metric("vllm:nixl_xfer_time_seconds_count")


def test_a_decode_engine_that_restarts_is_used_again(pair: Pair) -> None:
    handle, prompt, expected = conversation(pair)
    lease = pair.acquire(handle)
    replaced(pair.decode)
    reply, report, _ = pair.turn(prompt, lease)
    assert (reply, report["reason"]) == (expected, "lease_gone")
    assert pair.decode.control("acquire", {"handle": handle}).json() == {"reason": "unknown_handle"}
    reuse_back_within = []
    for _ in range(2):
        handle, prompt, expected = conversation(pair)
        reply, report, _ = pair.turn(prompt, pair.acquire(handle))
        assert reply == expected
        reuse_back_within.append(report["path"])
    assert reuse_back_within[-1] == "read_back"


def test_a_decode_engine_that_dies_while_it_is_read_costs_a_prefill(pair: Pair) -> None:
    handle, prompt, expected = conversation(pair)
    lease = pair.acquire(handle)
    # Its worker stands still, so the read cannot end; the engine's main process still answers the claim.
    family = psutil.Process(pair.decode.process.pid).children(recursive=True)
    (worker,) = [child for child in family if not child.children() and "Worker" in " ".join(child.cmdline())]
    os.kill(worker.pid, signal.SIGSTOP)
    died = threading.Timer(3, pair.decode.stop, [signal.SIGKILL])
    died.start()
    params = pair.prefill.complete(prompt, 1, {**lease, "do_remote_decode": True})["kv_transfer_params"]
    died.join()
    assert (params["neuron_pd_turn"]["path"], params["neuron_pd_turn"]["reason"]) == ("recompute", "load_failed")
    pair.decode.start().wait()
    assert pair.turn(prompt)[0] == expected
