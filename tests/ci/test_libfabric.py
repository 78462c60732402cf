import os
import subprocess
import sys
from pathlib import Path

import pytest

from ci import libfabric
from ci.libfabric import CANNOT, ROOT, Unavailable, environment


def test_a_process_takes_nixl_and_the_libraries_from_the_overlay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    variables = environment(Path("/overlay"))
    assert variables["PYTHONPATH"] == os.pathsep.join(("/overlay/python", "/mine"))
    assert variables["LD_LIBRARY_PATH"] == "/overlay/lib"
    assert (variables["FI_PROVIDER"], variables["FI_PROVIDER_PATH"]) == ("tcp", "/overlay/lib")


def test_where_it_cannot_work_it_says_why_and_runs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(libfabric.shutil, "which", lambda _: None)
    assert libfabric.run([sys.executable, "-c", "raise SystemExit(0)"]) == CANNOT
    assert "run as root, with iproute2" in capsys.readouterr().err


def test_a_step_that_fails_is_named() -> None:
    with pytest.raises(Unavailable, match="`false …` failed: status 1"):
        libfabric._run("false")
    with pytest.raises(Unavailable, match="no-such-program is not installed"):
        libfabric._run("no-such-program")


def test_a_half_made_overlay_is_not_taken_for_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(place: Path) -> None:
        place.mkdir()
        raise Unavailable("no network")

    monkeypatch.setattr(libfabric, "_make", fail)
    with pytest.raises(Unavailable):
        libfabric.overlay(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")
def test_a_namespace_has_an_address_of_its_own_and_is_gone_afterwards() -> None:
    listing = ["ip", "netns", "list"]
    try:
        with libfabric.namespace() as name:
            inside = subprocess.run(["ip", "-n", name, "-brief", "address"], capture_output=True, text=True, check=True)
            assert libfabric.ADDRESS in inside.stdout
            assert name in subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    except Unavailable as why:
        pytest.skip(str(why))
    assert name not in subprocess.run(listing, capture_output=True, text=True, check=True).stdout


def test_the_stub_of_cudas_driver_compiles_without_a_warning(tmp_path: Path) -> None:
    stub = ROOT / "ci" / "libcuda_stub.c"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-o", str(tmp_path / "libcuda.so.1"), str(stub)], check=True)
