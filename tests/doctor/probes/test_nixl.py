"""One thing wrong with NIXL at a time, in a real child process; and the real NIXL where it is installed."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from neuron_pd.doctor.findings import Finding, Verdict
from neuron_pd.doctor.probes import nixl
from neuron_pd.doctor.site import Site
from tests.doctor.sites import NIXL, Machine, build_plugin, only

FAILED, OK, SKIPPED = Verdict.FAILED, Verdict.OK, Verdict.NOT_APPLICABLE


@pytest.fixture
def p5en(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "p5en.48xlarge")


def found(machine: Machine, **given: float) -> list[Finding]:
    site = machine.site(**given)
    return [only(probe, site) for probe in nixl.PROBES]


def verdicts(findings: list[Finding]) -> list[Verdict]:
    return [finding.verdict for finding in findings]


def test_all_is_well(p5en: Machine) -> None:
    findings = found(p5en)
    assert verdicts(findings) == [OK, OK, OK]
    assert findings[2].seen == "16 rails over efa"


def test_it_is_not_installed(p5en: Machine) -> None:
    p5en.module("nixl/_api.py", "raise ModuleNotFoundError(\"No module named 'nixl'\", name='nixl')")
    findings = found(p5en)
    assert verdicts(findings) == [FAILED, SKIPPED, SKIPPED]
    assert findings[0].seen == "NIXL is not installed"
    assert "neuron-pd[cuda]" in findings[0].fix
    assert "pip install" in findings[0].fix


def test_it_does_not_import(p5en: Machine) -> None:
    p5en.module("nixl/_api.py", "raise ImportError('libcudart.so.12: cannot open shared object file')")
    findings = found(p5en)
    assert verdicts(findings) == [FAILED, SKIPPED, SKIPPED]
    assert "libcudart.so.12" in findings[0].seen


def test_importing_it_hangs(p5en: Machine) -> None:
    p5en.module("nixl/_api.py", "import time; time.sleep(60)")
    findings = found(p5en, seconds=1.0)
    assert verdicts(findings) == [FAILED, SKIPPED, SKIPPED]
    assert findings[0].seen == "importing NIXL did not end within 1 s"


def test_a_plugin_that_it_does_not_have(p5en: Machine) -> None:
    p5en.module("nixl/_api.py", NIXL.replace('"LIBFABRIC", "UCX"', '"UCX"'))
    findings = found(p5en)
    assert verdicts(findings) == [OK, FAILED, SKIPPED]
    assert findings[1].seen == "no such plugin; there are UCX"


def test_a_plugin_whose_library_is_missing(p5en: Machine, tmp_path: Path) -> None:
    """As NIXL's LIBFABRIC plugin without EFA's userspace: linked with a library that is not there."""
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    build_plugin(plugins / "libplugin_LIBFABRIC.so", "libfabric.so.1")
    p5en.environ["NIXL_PLUGIN_DIR"] = str(plugins)
    findings = found(p5en)
    assert verdicts(findings) == [OK, FAILED, SKIPPED]
    assert findings[1].seen == "libfabric.so.1 is missing"
    assert "/opt/amazon/efa/lib" in findings[1].fix


def test_making_an_agent_hangs(p5en: Machine) -> None:
    p5en.module("nixl/_api.py", NIXL.replace('if name == "LIBFABRIC":', "import time; time.sleep(60)\n        if 1:"))
    findings = found(p5en, seconds=2.0)
    assert verdicts(findings) == [OK, OK, FAILED]
    assert "hangs" in findings[2].seen


def test_making_an_agent_ends_the_process(p5en: Machine) -> None:
    p5en.module("nixl/_api.py", NIXL.replace('if name == "LIBFABRIC":', "os.abort()\n        if 1:"))
    findings = found(p5en)
    assert verdicts(findings) == [OK, OK, FAILED]
    assert "status -6" in findings[2].seen


def test_making_an_agent_fails(p5en: Machine) -> None:
    p5en.module("nixl/_api.py", NIXL.replace('if name == "LIBFABRIC":', "raise RuntimeError('no rail')\n        if 1:"))
    findings = found(p5en)
    assert verdicts(findings) == [OK, OK, FAILED]
    assert findings[2].seen == "RuntimeError: no rail"


def test_what_nixl_logged_last_is_the_reason(p5en: Machine) -> None:
    """The lines of NIXL 1.4.1's LIBFABRIC backend where libfabric has no efa."""
    log = """E1130 11:09:53.988332 192 libfabric_topology.cpp:53] Topology discovery failed
E1130 11:09:53.988380 192 backend_plugin.h:102] Failed to create engine: no suitable network providers found
E1130 11:09:53.988385 192 nixl_agent.cpp:404] createBackend: backend creation failed for 'LIBFABRIC'"""
    fail = f"print({log!r}, file=sys.stderr); raise RuntimeError('NIXL_ERR_BACKEND')\n        if 1:"
    p5en.module("nixl/_api.py", NIXL.replace('if name == "LIBFABRIC":', fail))
    finding = found(p5en)[2]
    assert finding.verdict is FAILED
    assert finding.seen.endswith("NIXL_ERR_BACKEND: Failed to create engine: no suitable network providers found")


def test_a_silent_fall_back_to_tcp_is_named(p5en: Machine) -> None:
    p5en.environ |= {"WIRE": "tcp", "RAILS": "1"}
    finding = found(p5en)[2]
    assert finding.verdict is FAILED
    assert finding.seen == "KV would silently go over TCP: 1 rail over tcp"


def test_fewer_rails_than_devices(p5en: Machine) -> None:
    p5en.environ["RAILS"] = "15"
    finding = found(p5en)[2]
    assert finding.verdict is FAILED
    assert finding.seen == "15 rails over efa, of 16 devices"


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("nixl") is None, reason="NIXL is not installed")
def test_the_real_one_over_ucx() -> None:
    site = Site(instance_name="cpu")
    assert verdicts([only(probe, site) for probe in nixl.PROBES]) == [OK, OK, OK]
