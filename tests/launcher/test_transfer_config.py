"""vLLM itself takes what the launcher gives it."""

import pytest

from neuron_pd.hosts.packages import vllm_version
from tests.launcher.engines import engine


@pytest.mark.vllm
@pytest.mark.parametrize("connector", ["neuron-pd", "upstream"])
@pytest.mark.parametrize("instance", ["cpu", "p5en.48xlarge", "trn2.48xlarge"])
def test_vllm_takes_the_configuration(connector: str, instance: str) -> None:
    config = pytest.importorskip("vllm.config").KVTransferConfig
    spec = engine(instance, connector=connector).for_vllm(vllm_version())
    taken = config(**spec.kv_transfer_config())
    assert taken.kv_role == "kv_producer"
    assert taken.get_from_extra_config("bidirectional_kv_xfer", None) is True
