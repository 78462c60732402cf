"""Whether this is a vLLM that the connector was tested on, and what to do where it is not."""

from importlib.util import find_spec

import vllm

from neuron_pd.core.versions import is_tested, tested_releases

# The vLLM that a Neuron SDK release brings, and the SDK.
NEURON_SDK = {"0.21": "2.31", "0.24": "2.32", "0.29": "2.33"}


def require_tested_vllm(version: str = vllm.__version__) -> None:
    """RuntimeError naming the tested releases, and what this one can do instead, when `version` is not one of them."""
    if is_tested(version):
        return
    raise RuntimeError(f"neuron-pd is tested on vLLM {tested_releases()} and this is {version}: {_instead(version)}")


def _instead(version: str) -> str:
    release = ".".join(version.split(".")[:2])
    if _is_nxd_stack():
        return (
            "this is the NxD stack (neuronx-distributed-inference), whose vLLM has no NIXL connector to build on, and "
            "no paged prefix cache in its older releases; serve with vllm-neuron of SDK 2.33 (vLLM 0.29)"
        )
    if (sdk := NEURON_SDK.get(release)) and find_spec("vllm_neuron"):
        return (
            f"it is the vLLM of Neuron SDK {sdk}. KV flows there with upstream's own connector (`neuron-pd launch "
            "--connector upstream`); verified reads back need SDK 2.33 (vLLM 0.29)"
        )
    return "install a tested release, or a neuron-pd that names this one"


def _is_nxd_stack() -> bool:
    return find_spec("neuronx_distributed_inference") is not None
