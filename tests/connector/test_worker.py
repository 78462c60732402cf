"""The two ends of a lease that our worker adds; NIXL is played, upstream's bookkeeping is real."""

import time
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.vllm


class PlayedNixl:
    """Every transfer is done, no notification comes."""

    def check_xfer_state(self, handle: int) -> str:
        return "DONE"

    def get_xfer_telemetry(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(xferDuration=1, postDuration=1, totalBytes=1, descCount=1)

    def release_xfer_handle(self, handle: int) -> None:
        return None

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        return {}


def worker() -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

    from neuron_pd.buffers.host import HostAdapter
    from neuron_pd.connector.bases import lease_worker
    from neuron_pd.connector.stats import LeaseStats

    made: Any = object.__new__(lease_worker(NixlPullConnectorWorker))
    made._start(HostAdapter())
    made.nixl_wrapper = PlayedNixl()
    made.xfer_stats = LeaseStats()
    made._recving_transfers, made._remote_agents = {}, {}
    made._recving_metadata = {}
    made._engine_clock_offset = {"d": 100.0}  # D's clock is 100 s ahead of ours
    made.transfer_topo = SimpleNamespace()
    # How 0.29 is told of a failed read.
    made._failed_recv_reqs, made._invalid_block_ids, made._is_hma_required = Queue(), Queue(), False
    return made


def popped(made: Any, transfers: dict[str, list[int]]) -> tuple[set[str], set[str]]:
    """Requests that are done, and those of them that failed."""
    found = made._pop_done_transfers(transfers)
    if isinstance(found, tuple):
        return found
    return found, set(made._failed_recv_reqs.queue)


def reading(made: Any, deadline: float | None) -> dict[str, list[int]]:
    made._recving_metadata["r"] = SimpleNamespace(
        remote=SimpleNamespace(engine_id="d", blocks_expiry_time=deadline), local_block_ids=[[1]]
    )
    return {"r": [7]}


@pytest.mark.parametrize(
    ("seconds_left", "late"),
    [(60.0, set()), (-0.001, {"r"}), (None, set())],
    ids=["in time", "outlasted", "an ordinary hand-off has no deadline"],
)
def test_a_read_that_outlasted_its_lease_has_failed(seconds_left: float | None, late: set[str]) -> None:
    made = worker()
    deadline = None if seconds_left is None else time.perf_counter() + 100.0 + seconds_left
    transfers = reading(made, deadline)
    assert popped(made, transfers) == ({"r"}, late)
    assert transfers == {}
    assert len(made.xfer_stats.data["num_kv_expired_reqs"]) == len(late)


def metadata(given_back: list[str], **fields: Any) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.metadata import NixlConnectorMetadata

    made = NixlConnectorMetadata()
    made.scheduler_clock = time.perf_counter()
    made.neuron_pd_given_back = given_back
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def test_a_lease_given_back_is_reported_once_and_forgotten() -> None:
    made = worker()
    made._ready_requests = Queue()
    made.pcp_rank = 0
    made._reqs_to_process, made._reqs_to_send = set(), {}
    made._send_heartbeats = lambda _: None
    soon = time.perf_counter() + 30
    made.start_load_kv(metadata([], reqs_in_batch={"lease"}, reqs_to_send={"lease": soon}))
    assert made._reqs_to_send.keys() == {"lease"}
    assert made._get_new_notifs() == set()
    made.start_load_kv(metadata(["lease", "never known"]))
    assert made._get_new_notifs() == {"lease"}
    assert made._get_new_notifs() == set()
    assert (made._reqs_to_send, made._reqs_to_process) == ({}, set())


def test_a_peer_is_met_anew_after_a_failed_read_when_no_other_read_is_under_way() -> None:
    made = worker()
    forgotten: list[str] = []
    made._cleanup_remote_engine = forgotten.append
    made._remote_agents = {"d": {}}
    made._failed_remote_engines, made._TRANSFER_MODE = set(), "pull"
    reading(made, None)
    made._handle_failed_transfer("r", None)
    made._recving_metadata["other"] = made._recving_metadata["r"]
    made._recving_transfers = {"other": [8]}
    made._forget_suspects()
    assert forgotten == []
    made._recving_transfers = {}
    made._forget_suspects()
    made._forget_suspects()
    assert forgotten == ["d"]


# A staging buffer


class Staged:
    """Our worker over CPU tensors that NIXL must not see; reads are played, copies are real."""

    def __init__(self) -> None:
        import torch

        from neuron_pd.buffers.host import HostAdapter
        from neuron_pd.buffers.staged import StagedAdapter

        self.made = worker()
        self.device = torch.arange(8.0).view(8, 1).expand(8, 4).contiguous()
        self.adapter = StagedAdapter(HostAdapter(), blocks=8, slots=4)
        (self.buffer,) = self.adapter.attach({"layer": self.device}).values()
        self.made._start(self.adapter)
        self.made._physical_blocks_per_logical_kv_block = 1
        self.read: list[Any] = []

    def told(self, **fields: Any) -> Any:
        made = metadata([])
        for name, value in fields.items():
            setattr(made, name, value)
        return made


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Staged:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

    made = Staged()
    monkeypatch.setattr(
        NixlPullConnectorWorker, "_read_blocks_for_req", lambda _, name, meta: made.read.append((name, meta))
    )
    return made


def test_a_prompt_is_in_its_slots_when_its_step_ends(staged: Staged) -> None:
    staged.made.expose_prompts(staged.told(neuron_pd_prompts=[([[5, 6]], [[0, 1]]), ([[2]], [[3]])]))
    assert staged.buffer[:, 0].tolist() == [5, 6, 0, 2]
    assert staged.made._take_exposed() == set()


def test_a_lease_is_in_its_slots_and_said_to_be_whether_or_not_the_step_computes(staged: Staged) -> None:
    """vLLM 0.29 ends a step that computes nothing without `wait_for_save`."""
    staged.made._ready_requests, staged.made.pcp_rank = Queue(), 0
    staged.made._reqs_to_process, staged.made._reqs_to_send = set(), {}
    staged.made._send_heartbeats = lambda _: None
    staged.made.start_load_kv(staged.told(neuron_pd_leases={"lease": ([[4, 7]], [[1, 2]])}))
    assert staged.buffer[1:3, 0].tolist() == [4, 7]
    assert staged.made._take_exposed() == {"lease"}
    assert staged.made._take_exposed() == set()


def test_a_read_goes_to_slots_and_from_there_to_the_device(staged: Staged) -> None:
    staged.made._receiving["r"] = [[2, 3]]
    meta = SimpleNamespace(local_block_ids=([6, 1],), remote=None)
    staged.made._read_blocks_for_req("r", meta)
    ((name, read),) = staged.read
    assert (name, read.local_physical_block_ids) == ("r", [[2, 3]])
    assert read.local_block_ids == ([6, 1],)  # a failure is told of device blocks
    staged.buffer[2:] = 70.0
    staged.made._land({"r", "another's"}, set())
    assert staged.device[:, 0].tolist() == [0, 70, 2, 3, 4, 5, 70, 7]
    assert not staged.made._receiving
    assert not staged.made._landing


def test_a_read_that_failed_leaves_the_device_as_it_was(staged: Staged) -> None:
    staged.made._receiving["r"] = [[2]]
    staged.made._read_blocks_for_req("r", SimpleNamespace(local_block_ids=([6],), remote=None))
    staged.buffer[2:] = 70.0
    staged.made._land({"r"}, {"r"})
    assert staged.device[6, 0] == 6
    assert not staged.made._landing


def test_a_read_without_slots_has_failed(staged: Staged, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[str] = []
    monkeypatch.setattr("neuron_pd.connector.compat.fail_read", lambda _, name: failed.append(name))
    staged.made._receiving["r"] = []
    staged.made._read_blocks_for_req(
        "r", SimpleNamespace(local_block_ids=([6],), remote=SimpleNamespace(engine_id="d"))
    )
    assert (failed, staged.read) == (["r"], [])
