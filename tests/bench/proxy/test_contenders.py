"""Processes on a core of their own, and peers that cannot be had."""

import os
import sys
from pathlib import Path

import pytest

from neuron_pd.bench.proxy import peers
from neuron_pd.bench.proxy.contenders import OURS, Pinned, Ports, contender, free_port
from neuron_pd.bench.proxy.peers import Unavailable

CORE = min(os.sched_getaffinity(0))


def test_a_process_keeps_to_its_core() -> None:
    code = "import os; print(os.sched_getaffinity(0), flush=True); input()"
    with Pinned((sys.executable, "-c", code), CORE, talks=True) as child:
        assert child.read_line() == b"{%d}\n" % CORE
    assert child.process.returncode is not None


def test_a_proxy_that_ends_says_why() -> None:
    code = "import sys; sys.exit('it cannot be')"
    with (
        Pinned((sys.executable, "-c", code), CORE) as child,
        pytest.raises(Unavailable, match="status 1: it cannot be"),
    ):
        child.listening(free_port())


def test_ours() -> None:
    ours = contender(OURS, Ports(1, 2), lambda line: None)
    assert ours.argv[1:4] == ("-m", "neuron_pd", "proxy")
    assert ours.argv[-1] == str(ours.port)


def test_what_cannot_be_installed_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(Unavailable, match="No such file"):
        peers.router(lambda line: None)
    assert not (tmp_path / "neuron-pd" / "peers" / f"vllm-router-{peers.ROUTER}").exists()


def test_the_reason_is_what_the_installer_said() -> None:
    code = "import sys; sys.exit('WARNING: a\\nERROR: no such version\\nWARNING: b')"
    with pytest.raises(Unavailable, match="failed: ERROR: no such version"):
        peers._run(sys.executable, "-c", code)


def test_what_is_cached_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    program = tmp_path / "neuron-pd" / "peers" / f"vllm-router-{peers.ROUTER}" / "bin" / "vllm-router"
    program.parent.mkdir(parents=True)
    program.write_text("")
    assert peers.router(lambda line: None) == program


def test_a_source_release_gives_the_example_and_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tarfile

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    beside = str(Path(peers.BENCHMARK).with_name("bench_utils.py"))
    for name in (peers.EXAMPLE, peers.BENCHMARK, beside, "vllm/other.py"):
        source = tmp_path / "vllm-1" / name
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(name)
    with tarfile.open(tmp_path / "vllm-1.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "vllm-1", "vllm-1")
    monkeypatch.setattr(peers, "_source_release", lambda folder: tmp_path / "vllm-1.tar.gz")
    script = peers._from_source(peers.BENCHMARK, lambda line: None)
    assert script.read_text() == peers.BENCHMARK
    assert script.with_name("bench_utils.py").exists()
    assert peers._from_source(peers.EXAMPLE, lambda line: None).read_text() == peers.EXAMPLE
    with pytest.raises(Unavailable, match="holds no"):
        peers._from_source("vllm/other.py", lambda line: None)
