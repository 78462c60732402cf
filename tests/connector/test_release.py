import sys
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

pytestmark = pytest.mark.vllm


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> Any:
    from neuron_pd.connector import release

    monkeypatch.setattr(release, "find_spec", lambda name: ModuleSpec(name, None) if name in names else None)
    return release


@pytest.mark.parametrize("version", ["0.29.0", "0.32.0", "0.29.0+neuron", "0.30.1rc1"])
def test_a_tested_release_passes(version: str) -> None:
    from neuron_pd.connector.release import require_tested_vllm

    require_tested_vllm(version)


def test_another_release_is_told_what_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"tested on vLLM 0\.29 to 0\.32 and this is 0\.24\.0: install a tested"):
        installed(monkeypatch).require_tested_vllm("0.24.0")


def test_the_vllm_of_sdk_2_32_is_told_what_works_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"Neuron SDK 2\.32.*--connector upstream.*need SDK 2\.33 \(vLLM 0\.29\)"):
        installed(monkeypatch, "vllm_neuron").require_tested_vllm("0.24.0.1.1.0")


def test_the_nxd_stack_is_told_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("vllm_neuron", "neuronx_distributed_inference")
    with pytest.raises(RuntimeError, match=r"NxD stack.*no NIXL connector to build on.*no paged prefix cache"):
        installed(monkeypatch, *names).require_tested_vllm("0.16.0")


def test_nothing_of_vllm_that_may_be_missing_is_imported_before_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    for name in [name for name in sys.modules if name.startswith("neuron_pd.connector")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(vllm, "__version__", "0.24.0")
    # As in a release before the NIXL connector was split.
    monkeypatch.setitem(sys.modules, "vllm.distributed.kv_transfer.kv_connector.v1.nixl", None)
    with pytest.raises(RuntimeError, match=r"this is 0\.24\.0"):
        import neuron_pd.connector.connector  # noqa: F401
