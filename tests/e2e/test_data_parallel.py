"""A decode engine of two data-parallel ranks behind two API servers: any of them finds the rank that holds a record."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.e2e.servers import Pair, Server

pytestmark = pytest.mark.e2e

SOURCE = " ".join(f"word{n}" for n in range(900))
RANKS = ["--data-parallel-size", "2", "--api-server-count", "2"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    logs = tmp_path_factory.mktemp("ranks")
    decode = Server("decode", logs / "decode.log", args=RANKS, environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind"})
    with Pair(Server("prefill", logs / "prefill.log"), decode) as made:
        yield made


def test_every_rank_s_turns_are_found_by_any_api_server(pair: Pair) -> None:
    info = pair.decode.control("info").json()
    assert len(info["engine_ids"]) == 2
    held_by = set()
    for n in range(6):
        handle, prompt = uuid4().hex, SOURCE[100 * n : 100 * n + 1500]
        expected = pair.cold(prompt + " " + SOURCE[:100])
        pair.turn(prompt, handle=handle, tokens=1)
        lease = pair.acquire(handle)
        held_by.add(lease["remote_engine_id"])
        reply, report, _ = pair.turn(prompt + " " + SOURCE[:100], lease)
        assert (reply, report["path"]) == (expected, "read_back")
    assert held_by == set(info["engine_ids"])
    stats = pair.decode.settled()
    assert (stats["leases_read"], stats["kv_blocks_used"]) == (6, 0)
