"""The emulated link, in real network namespaces where this process may make them."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from neuron_pd.errors import EngineStartError, UsageError
from neuron_pd.launcher import link as link_module
from neuron_pd.launcher.link import LEAST_BURST, Link, bits_per_second, check_possible, remove_stale

root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("tc") is None or shutil.which("ip") is None, reason="needs root, ip and tc"
)


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def namespaces() -> set[str]:
    return {line.split()[0] for line in run("ip", "netns", "list").splitlines()}


@pytest.fixture
def link() -> Iterator[Link]:
    with Link.plan() as made:
        yield made


@pytest.mark.parametrize(
    ("rate", "bits"),
    [("1gbit", 1e9), ("250mbit", 2.5e8), ("2.5Gbit", 2.5e9), ("9600bit", 9600.0), ("unlimited", None)],
)
def test_rates(rate: str, bits: float | None) -> None:
    assert bits_per_second(rate) == bits


@pytest.mark.parametrize("rate", ["", "fast", "1gbps", "0mbit", "-1gbit", "1 g"])
def test_what_is_no_rate(rate: str) -> None:
    with pytest.raises(UsageError, match="is not a rate: write it like 1gbit, 250mbit or unlimited"):
        bits_per_second(rate)


def test_without_root_or_tools_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="--emulate-link makes network namespaces: run it as root"):
        check_possible()
    assert remove_stale() == 0
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(link_module, "PATH", str(tmp_path))
    with pytest.raises(UsageError, match="--emulate-link needs `ip`: install iproute2"):
        check_possible()
    assert remove_stale() == 0


LISTEN = """
import socket, sys
with socket.create_server((sys.argv[1], 7)) as server:
    print("up", flush=True)
    for _ in range(int(sys.argv[2])):
        server.accept()[0].close()
"""
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 7), 5).close()"


@root
def test_both_ends_reach_each_other_and_this_machine_reaches_both(link: Link) -> None:
    for near, far in ((link.prefill, link.decode), (link.decode, link.prefill)):
        inside = ("ip", "netns", "exec")
        command = [*inside, far.namespace, sys.executable, "-c", LISTEN, "0.0.0.0", "2"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        assert server.stdout.readline() == "up\n"
        run(*inside, near.namespace, sys.executable, "-c", CONNECT, far.data)
        run(sys.executable, "-c", CONNECT, far.api)
        assert server.wait() == 0
        # The engines' only way to each other is the limited one.
        around = [*inside, near.namespace, sys.executable, "-c", CONNECT, far.api]
        assert b"unreachable" in subprocess.run(around, capture_output=True, check=False).stderr


@root
def test_the_rate_is_set_on_both_ends_and_can_be_changed(link: Link) -> None:
    for rate, shown in (("200mbit", "rate 200Mbit"), ("10gbit", "rate 10Gbit")):
        link.limit(rate)
        for end in (link.prefill, link.decode):
            discipline = run("tc", "-n", end.namespace, "qdisc", "show", "dev", "kv0")
            assert discipline.startswith("qdisc tbf")
            assert shown in discipline
    for _ in range(2):
        link.limit("unlimited")
        assert "tbf" not in run("tc", "-n", link.decode.namespace, "qdisc", "show", "dev", "kv0")


SINK = """
import socket, sys
with socket.create_server((sys.argv[1], 7)) as server:
    print("up", flush=True)
    connection = server.accept()[0]
    while connection.recv(65536):
        pass
    connection.sendall(b"!")
"""
SOURCE = """
import socket, sys, time
with socket.create_connection((sys.argv[1], 7), 10) as connection:
    began = time.perf_counter()
    connection.sendall(bytes(int(sys.argv[2])))
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
    print(time.perf_counter() - began)
"""


@root
def test_nothing_goes_faster_than_the_rate(link: Link) -> None:
    size, rate = 2_000_000, 20e6
    link.limit("20mbit")
    inside = ("ip", "netns", "exec")
    command = [*inside, link.decode.namespace, sys.executable, "-c", SINK, link.decode.data]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sink:
        assert sink.stdout is not None
        assert sink.stdout.readline() == "up\n"
        seconds = float(run(*inside, link.prefill.namespace, sys.executable, "-c", SOURCE, link.decode.data, str(size)))
    # A lower bound, however busy the machine: all but the bucket's burst has to wait its turn.
    assert seconds >= 8 * (size - LEAST_BURST) / rate


@root
def test_nothing_is_left_after_an_end_or_an_error() -> None:
    before = namespaces()
    made = Link.plan()
    with pytest.raises(UsageError), made:
        made.limit("fast")
    assert namespaces() == before
    assert made.prefill.host_device not in run("ip", "-o", "link")


@root
def test_what_cannot_be_made_leaves_nothing_either() -> None:
    before = namespaces()
    made = Link.plan()
    impossible = Link(made.prefill, made.decode._replace(data="198.18.999.1"))
    with pytest.raises(EngineStartError, match=r"`ip .*address add .*` failed"):
        impossible.__enter__()
    assert namespaces() == before


@root
def test_two_runs_have_addresses_of_their_own(link: Link) -> None:
    other = Link.plan()
    assert other.prefill.data != link.prefill.data
    assert other.prefill.host_device != link.prefill.host_device


KILLED = """
import signal, sys
from neuron_pd.launcher.link import Link
with Link.plan() as link:
    print(link.prefill.namespace, link.decode.namespace, flush=True)
    signal.pause()
"""


@root
def test_what_a_killed_run_left_is_removed_and_what_a_living_one_uses_is_not(link: Link) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    left = set(process.stdout.readline().split())
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left <= namespaces()
    assert remove_stale() >= 2
    assert not left & namespaces()
    assert {link.prefill.namespace, link.decode.namespace} <= namespaces()


@root
def test_a_namespace_of_a_process_whose_id_was_given_away_is_stale() -> None:
    own = psutil.Process()
    name = f"npd-{own.pid}-{round(own.create_time() * 100) - 1000}-prefill"
    run("ip", "netns", "add", name)
    remove_stale()
    assert name not in namespaces()
