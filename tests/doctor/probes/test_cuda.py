import shutil
import subprocess
from pathlib import Path

import pytest

from neuron_pd.doctor.findings import Verdict
from neuron_pd.doctor.probes import cuda
from tests.doctor.sites import Machine, only

LIBCUDA = "int cuInit(unsigned flags) {{ return {status}; }} int cuDriverGetVersion(int *v) {{ *v = 12080; return 0; }}"
TORCH = """
__version__ = "2.13.0+{build}"
class version: cuda = {cuda!r}
class cuda:
    @staticmethod
    def device_count(): return {count}
"""


@pytest.fixture
def p5en(tmp_path: Path) -> Machine:
    return Machine(tmp_path, "p5en.48xlarge")


def libcuda(machine: Machine, place: Path, status: int) -> None:
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler (cc) to build a stand-in for libcuda with")
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(place / "libcuda.so.1")]
    subprocess.run(command, input=LIBCUDA.format(status=status), text=True, check=True)
    machine.environ["LD_LIBRARY_PATH"] = str(place)


def test_a_gpu_is_missing(p5en: Machine) -> None:
    listing = (p5en.tools / "nvidia-smi").read_text().splitlines()[1]
    p5en.tool("nvidia-smi", f"{listing} | tail -n +2")
    finding = only(cuda.gpus, p5en.site())
    assert (finding.verdict, finding.seen) == (Verdict.FAILED, "7 of the 8 H200 of a p5en.48xlarge")


def test_other_gpus_than_the_catalogue_has(p5en: Machine) -> None:
    listing = (p5en.tools / "nvidia-smi").read_text().splitlines()[1]
    p5en.tool("nvidia-smi", f"{listing} | sed s/H200/A10G/")
    finding = only(cuda.gpus, p5en.site())
    assert finding.seen == "0 of the 8 H200 of a p5en.48xlarge; there is NVIDIA A10G"


@pytest.mark.parametrize(
    ("status", "verdict", "seen"),
    [
        (0, Verdict.OK, "CUDA 12.8"),
        (100, Verdict.FAILED, "the driver sees no GPU"),
        (802, Verdict.FAILED, "fabric is not set up"),
        (803, Verdict.FAILED, "driver and libcuda do not match"),
        (999, Verdict.FAILED, "cuInit answers 999"),
    ],
)
def test_the_driver(p5en: Machine, tmp_path: Path, status: int, verdict: Verdict, seen: str) -> None:
    libcuda(p5en, tmp_path, status)
    finding = only(cuda.driver, p5en.site())
    assert finding.verdict is verdict
    assert seen in finding.seen


def test_a_libcuda_that_cannot_be_used(p5en: Machine, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    p5en.environ["LD_LIBRARY_PATH"] = str(tmp_path)
    finding = only(cuda.driver, p5en.site())
    assert finding.verdict is Verdict.FAILED
    assert "libcuda.so.1 cannot be used" in finding.seen


@pytest.mark.parametrize(
    ("cuda_version", "count", "verdict", "seen"),
    [
        ("12.8", 8, Verdict.OK, "CUDA 12.8, 8 GPUs"),
        ("12.8", 2, Verdict.FAILED, "sees 2 of 8 GPUs"),
        (None, 0, Verdict.FAILED, "was built without CUDA"),
    ],
)
def test_torch(p5en: Machine, cuda_version: str | None, count: int, verdict: Verdict, seen: str) -> None:
    p5en.module("torch.py", TORCH.format(build="x", cuda=cuda_version, count=count))
    finding = only(cuda.torch, p5en.site())
    assert finding.verdict is verdict
    assert seen in finding.seen


def test_no_torch(p5en: Machine) -> None:
    p5en.module("torch.py", "raise ImportError('libcudnn.so.9: cannot open shared object file')")
    finding = only(cuda.torch, p5en.site())
    assert finding.verdict is Verdict.FAILED
    assert "libcudnn.so.9" in finding.seen


def test_a_plain_machine_says_what_it_lacks(tmp_path: Path) -> None:
    plain = Machine(tmp_path, "trn2.48xlarge").site()
    for probe in cuda.PROBES:
        assert only(probe, plain).verdict is Verdict.NOT_APPLICABLE
    assert only(cuda.gpus, plain).seen == "no NVIDIA GPUs, and a machine of kind trn2.48xlarge needs none"
