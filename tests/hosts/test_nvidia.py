import pytest

from neuron_pd.hosts.nvidia import parse_nvidia_smi
from tests.hosts.machines import captured


def test_eight_h200() -> None:
    gpus = parse_nvidia_smi(captured("p5en.48xlarge", "nvidia-smi.csv"))
    assert [gpu.index for gpu in gpus] == list(range(8))
    assert {(gpu.name, gpu.memory // 2**30) for gpu in gpus} == {("NVIDIA H200", 140)}
    assert gpus[0].bdf == "00000000:53:00.0"


def test_memory_that_is_not_said() -> None:
    (gpu,) = parse_nvidia_smi("0, NVIDIA GB10, [N/A], 0000000F:01:00.0, 580.95.05\n\n")
    assert gpu.memory == 0


@pytest.mark.parametrize("text", ["No devices were found\n", "NVIDIA-SMI has failed because it couldn't communicate\n"])
def test_a_driver_that_does_not_answer(text: str) -> None:
    with pytest.raises(ValueError, match="not a GPU"):
        parse_nvidia_smi(text)
