"""The provisioning script in a bare root file system, with recorders in place of what fetches and installs."""

import re
from pathlib import Path

import pytest

from neuron_pd.launcher.formats.container import MODELS
from neuron_pd.launcher.formats.units import PROGRAM, SETTINGS, machine_units
from tests.launch_assets.bare_root import BareRoot
from tests.launch_assets.machine import SCRIPT, VENV, dlami, machine
from tests.launch_assets.tools import ROOT


@pytest.fixture
def root(tmp_path: Path) -> BareRoot:
    return machine(tmp_path / "root")


def provision(bare: BareRoot, *argv: str) -> list[str]:
    """What the recorders got, without questions that change nothing."""
    result = bare.run(SCRIPT, *argv)
    assert result.returncode == 0, result.stdout + result.stderr
    asked = ("dpkg -s", "ldd ", "python -c", "python3 -c", "python -m pip --quiet list", "python3 -m pip --quiet list")
    return [line for line in bare.record() if not line.startswith(asked)]


def pinned(name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", (ROOT / "launch/image/versions.env").read_text(), re.MULTILINE)
    assert found
    return found[1]


def test_a_neuron_machine(root: BareRoot) -> None:
    dlami(root, "0_9", "0_29_0", "0_24_0")
    record = provision(root, "neuron")
    pip = "python -m pip --quiet install"
    order = ["apt-get update", "apt-get install", "curl", "efa_installer.sh -y", f"{pip} --constraint",
             f"{pip} --no-deps nixl==", "ldconfig", "cc -shared", f"{pip} --no-deps --target", "ldconfig",
             "systemctl enable", "neuron-pd --version"]  # fmt: skip
    assert [line.startswith(start) for line, start in zip(record, order, strict=True)] == [True] * len(order), record
    assert record[3] == "efa_installer.sh -y"  # with the driver: this is the machine itself
    assert f"nixl=={pinned('NIXL_VERSION')} nixl-cu12=={pinned('NIXL_VERSION')}" in record[5]
    assert record[-2] == "systemctl enable neuron-pd.target neuron-pd-engine@0.service neuron-pd-proxy.service"
    venv = VENV.format("0_29_0")
    assert (root.place / PROGRAM.lstrip("/")).readlink() == Path(venv) / "neuron-pd"
    assert root.read(f"{SETTINGS}/machine.env").startswith(f"PATH={venv}:")
    for name, text in machine_units().items():
        assert root.read(f"/etc/systemd/system/{name}") == text
    for path in {path for text in machine_units().values() for path in re.findall(r"ConditionPathExists=(\S+)", text)}:
        assert (root.place / f"{path}.example".lstrip("/")).exists()
    assert "/opt/amazon/efa/lib\n" in root.read("/etc/ld.so.conf.d/neuron-pd.conf")
    assert root.read("/etc/security/limits.d/90-neuron-pd.conf") == "* - memlock unlimited\n"


def test_a_second_run_fetches_and_compiles_nothing(root: BareRoot) -> None:
    dlami(root, "0_29_0")
    provision(root, "neuron")
    before = {path: path.lstat().st_mode for path in root.place.rglob("*")}
    root.recorder("dpkg")  # packages are there
    record = provision(root, "neuron")
    words = {line.split()[0] for line in record}
    assert not words & {"apt-get", "curl", "cc", "efa_installer.sh"}, record
    assert [line for line in record if "pip" in line] == [line for line in record if "--constraint" in line]
    assert {path: path.lstat().st_mode for path in root.place.rglob("*") if path.name != "record"} == {
        path: mode for path, mode in before.items() if path.name != "record"
    }


def test_a_newer_efa_is_kept(root: BareRoot) -> None:
    dlami(root, "0_29_0")
    (root.place / "opt/amazon").mkdir()
    (root.place / "opt/amazon/efa_installed_packages").write_text("# EFA installer version: 1.100.0\n")
    assert not [line for line in provision(root, "neuron") if line.startswith(("curl", "efa_installer"))]


def test_an_older_efa_is_replaced(root: BareRoot) -> None:
    dlami(root, "0_29_0")
    (root.place / "opt/amazon").mkdir()
    (root.place / "opt/amazon/efa_installed_packages").write_text("# EFA installer version: 1.9.0\n")
    assert "efa_installer.sh -y" in provision(root, "neuron")


def test_a_container_gets_no_driver_no_limits_and_no_units(root: BareRoot) -> None:
    record = provision(root, "cuda", "--container")
    assert "efa_installer.sh -y -g --skip-kmod --skip-limit-conf --no-verify" in record
    assert not [line for line in record if line.startswith(("systemctl", "cc"))]
    assert not (root.place / "etc/systemd/system").exists()
    assert (root.place / PROGRAM.lstrip("/")).readlink() == Path("/usr/local/bin/neuron-pd")


def test_the_cpu_container_has_the_tiny_model_where_clusters_look_for_it(root: BareRoot) -> None:
    record = provision(root, "cpu", "--container")
    assert f"neuron-pd model tiny --out {MODELS}/tiny" in record
    assert not [line for line in record if line.startswith(("curl", "efa_installer", "ldconfig"))]
    installs = [line for line in record if "pip --quiet install" in line]
    assert len(installs) == 1
    assert "/src[cpu,kubernetes,redis,otel]" in installs[0]


def test_what_the_extras_are_called() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for extra in ("cpu", "kubernetes", "redis", "otel"):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)


@pytest.mark.parametrize(
    ("broken", "does", "message"),
    [
        ("apt-get", "exit 100", ""),
        (
            "curl",
            'while [ "$1" != --output ]; do shift; done; echo other > "$2"',
            "is not the one that versions.env pins",
        ),
        ("cc", "exit 1", ""),
        ("ldd", "echo 'libfabric.so.1 => not found'", "NIXL's LIBFABRIC plugin lacks libfabric.so.1"),
        ("systemctl", "exit 1", ""),
    ],
)
def test_a_step_that_fails_ends_it_loudly(broken: str, does: str, message: str, root: BareRoot) -> None:
    dlami(root, "0_29_0")
    root.recorder(broken, does)
    result = root.run(SCRIPT, "neuron")
    assert result.returncode != 0
    assert message in result.stderr
    assert "neuron-pd --version" not in root.record()


def test_a_machine_without_vllm_is_refused(root: BareRoot) -> None:
    result = root.run(SCRIPT, "neuron")
    assert result.returncode == 1
    assert "there is no Python with vLLM here: start from a Neuron DLAMI" in result.stderr


def test_usage(root: BareRoot) -> None:
    result = root.run(SCRIPT, "abacus")
    assert (result.returncode, result.stderr) == (2, "usage: provision.sh neuron|cuda|cpu [--container]\n")
