"""A real NIXL agent, made as upstream's worker makes it."""

import os
import time
from collections.abc import Iterator

import pytest

pytestmark = pytest.mark.vllm


@pytest.fixture(autouse=True)
def cores() -> Iterator[set[int]]:
    allowed = os.sched_getaffinity(0)
    yield allowed
    os.sched_setaffinity(0, allowed)


def made_as_upstream_makes_it(wanted: bool) -> tuple[set[int], float]:
    """The cores that are left to this thread, and how much of a core the agent takes while nothing happens."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    from neuron_pd.connector.threads import cores_for_the_model

    with cores_for_the_model(wanted):
        agent = base_worker.NixlWrapper("agent", base_worker.nixl_agent_config(backends=["UCX"]))
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    before, began = time.process_time(), time.perf_counter()
    time.sleep(0.5)
    used = (time.process_time() - before) / (time.perf_counter() - began)
    del agent
    return os.sched_getaffinity(0), used


def test_the_model_keeps_its_cores_and_nothing_polls(cores: set[int]) -> None:
    left, used = made_as_upstream_makes_it(wanted=True)
    assert left == cores
    assert used < 0.05


def test_elsewhere_upstream_has_its_way(cores: set[int]) -> None:
    left, used = made_as_upstream_makes_it(wanted=False)
    assert left == {max(cores)}
    assert used > 0.05  # NIXL's progress thread; when this fails, threads.py has lost its reason


def test_upstreams_setting_is_put_back() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    from neuron_pd.connector.threads import cores_for_the_model

    ordinary = base_worker.nixl_agent_config
    with pytest.raises(RuntimeError), cores_for_the_model(True):
        raise RuntimeError
    assert base_worker.nixl_agent_config is ordinary
