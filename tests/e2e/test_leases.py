"""The lease cycle as a router drives it, on real engines: what goes wrong ends in an ordinary prefill."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from neuron_pd.core.transfer import TURN, first_leg, second_leg
from tests.e2e.conftest import Cluster
from tests.e2e.test_turns import SOURCE

pytestmark = pytest.mark.e2e

Lease = dict[str, Any] | None


class Router:
    """Both legs of a completion, without a proxy between."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def acquire(self, handle: str) -> dict[str, Any]:
        answer = self.cluster.control(self.cluster.decode, "acquire", {"handle": handle})
        assert answer.status_code == 200, answer.text
        lease: dict[str, Any] = answer.json()["kv_transfer_params"]
        return lease

    def prefill(self, prompt: str, lease: Lease) -> dict[str, Any]:
        answer: dict[str, Any] = self._post(self.cluster.prefill, prompt, 1, first_leg(lease))
        return answer["kv_transfer_params"]

    def give_back(self, lease: dict[str, Any]) -> int:
        body = {"lease": lease["remote_request_id"]}
        released: int = self.cluster.control(self.cluster.decode, "release", body).json()["released"]
        return released

    def turn(self, prompt: str, lease: Lease = None, handle: str | None = None) -> tuple[str, dict[str, Any]]:
        """The reply, and P's report. A lease that P did not read is given back, as a router does."""
        params = self.prefill(prompt, lease)
        if lease is not None and not params[TURN]["reused"]:
            self.give_back(lease)
        reply = self._post(self.cluster.decode, prompt, 24, second_leg(params, handle))
        return reply["choices"][0]["text"], params[TURN]

    def _post(self, engine: str, prompt: str, tokens: int, params: dict[str, Any]) -> Any:
        body = {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
        response = self.cluster.http.post(f"{engine}/v1/completions", json={**body, "kv_transfer_params": params})
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture
def router(cluster: Cluster) -> Router:
    return Router(cluster)


@pytest.fixture
def turn(router: Router) -> tuple[str, str, str]:
    """A finished turn: its handle, the next prompt, and the answer to that without reuse."""
    handle, prompt = uuid4().hex, SOURCE[2000:4500]
    reply, _ = router.turn(prompt, handle=handle)
    longer = prompt + reply + SOURCE[:300]
    return handle, longer, router.turn(longer)[0]


def test_a_lease_is_read_and_ends(cluster: Cluster, router: Router, turn: tuple[str, str, str]) -> None:
    handle, prompt, expected = turn
    reads = cluster.stats()["leases_read"]
    reply, report = router.turn(prompt, router.acquire(handle))
    assert (reply, report["path"]) == (expected, "read_back")
    stats = cluster.settled()
    assert (stats["leases_read"], stats["pinned_blocks"]) == (reads + 1, 0)


def test_a_lease_used_again_is_recomputed(router: Router, turn: tuple[str, str, str]) -> None:
    handle, prompt, expected = turn
    lease = router.acquire(handle)
    assert router.turn(prompt, lease)[1]["path"] == "read_back"
    reply, report = router.turn(prompt, lease)
    assert (reply, report["reason"]) == (expected, "lease_gone")


def test_a_lease_that_was_given_back_is_not_read(router: Router, turn: tuple[str, str, str]) -> None:
    handle, prompt, expected = turn
    lease = router.acquire(handle)
    router.give_back(lease)
    reply, report = router.turn(prompt, lease)
    assert (reply, report["path"], report["reason"]) == (expected, "recompute", "lease_gone")


def test_two_requests_that_are_given_one_lease_are_both_right(
    cluster: Cluster, router: Router, turn: tuple[str, str, str]
) -> None:
    handle, prompt, expected = turn
    lease = router.acquire(handle)
    with ThreadPoolExecutor(2) as both:
        served = list(both.map(lambda given: router.turn(prompt, given), (dict(lease), dict(lease))))
    assert [reply for reply, _ in served] == [expected, expected]
    reasons = sorted(report["reason"] for _, report in served)
    assert reasons[1] == "verified"
    assert reasons[0] in ("lease_taken", "lease_gone")
    assert cluster.settled()["pinned_blocks"] == 0


def test_a_lease_given_back_frees_its_blocks_at_once(
    cluster: Cluster, router: Router, turn: tuple[str, str, str]
) -> None:
    lease = router.acquire(turn[0])
    assert cluster.stats()["pinned_blocks"] > 0
    assert router.give_back(lease) == 1
    stats = cluster.settled()
    assert (stats["open_leases"], stats["pinned_blocks"]) == (0, 0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"remote_block_ids": [1, 2]}, "malformed"),
        ({"remote_block_ids": [[1], [2]]}, "malformed"),
        ({"remote_port": "x"}, "malformed"),
        ({"neuron_pd_fingerprint": None}, "unverified"),
    ],
)
def test_a_lease_that_does_not_hold_together_is_recomputed(
    router: Router, turn: tuple[str, str, str], change: dict[str, Any], reason: str
) -> None:
    handle, prompt, expected = turn
    reply, report = router.turn(prompt, {**router.acquire(handle), **change})
    assert (reply, report["reason"], report["reused"]) == (expected, reason, 0)


def test_a_peer_that_is_not_there_is_recomputed(router: Router, turn: tuple[str, str, str]) -> None:
    handle, prompt, expected = turn
    gone = {**router.acquire(handle), "remote_engine_id": "gone", "remote_port": 1}
    reply, report = router.turn(prompt, gone)
    assert (reply, report["reason"]) == (expected, "lease_gone")


def test_a_hand_off_that_nobody_reads_is_given_back(cluster: Cluster, router: Router) -> None:
    params = router.prefill(SOURCE[:2000], None)
    assert cluster.stats(cluster.prefill)["kv_blocks_used"] > 0
    name = params["remote_request_id"]
    assert cluster.control(cluster.prefill, "release", {"lease": name}).json() == {"released": 1}
    for _ in range(50):
        if cluster.stats(cluster.prefill)["kv_blocks_used"] == 0:
            break
    assert cluster.stats(cluster.prefill)["kv_blocks_used"] == 0
