"""Engines as a person types them."""

import pytest

from neuron_pd.cli.proxy.engines import from_hosts
from neuron_pd.errors import UsageError
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.targets import from_options


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("http://10.0.0.1:8100", Origin("10.0.0.1", 8100)),
        ("http://host:8100/", Origin("host", 8100)),
        ("host:8100", Origin("host", 8100)),
        ("http://host", Origin("host", 80)),
        ("http://[::1]:8100/base/", Origin("::1", 8100, "/base")),
    ],
)
def test_urls(url: str, origin: Origin) -> None:
    assert Origin.parse(url) == origin
    assert Origin.parse(origin.url) == origin


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://",
        "ftp://host:1",
        "ftp://host",
        "http://host:port",
        "http://[::1",
        "http://host:99999",
        "http://host:0",
        "http://a b:1",
        "http://host:1?x",
        "http://user:secret@host:1",
        "http://host:1,http://other:1",
    ],
)
def test_what_is_no_url(url: str) -> None:
    with pytest.raises(UsageError) as error:
        Origin.parse(url)
    assert "\n" not in str(error.value)
    assert "secret" not in str(error.value)


P, D = "http://p:8100", "http://d:8200"


def test_pools_and_kv_hosts() -> None:
    prefill, decode = from_options([P], [D, "http://e:8200"], ["http://d:8200=10.1.0.5"])
    assert [target.kv_host for target in (*prefill, *decode)] == ["p", "10.1.0.5", "e"]


@pytest.mark.parametrize(
    ("prefill", "decode", "kv_hosts", "said"),
    [
        ([], [D], [], "no prefill engine given: add --prefill"),
        ([P], [], [], "no decode engine given: add --decode"),
        ([P], [P], [], "is given as --prefill and as --decode"),
        ([P], [P + "/"], [], "is given as --prefill and as --decode"),
        ([P, P], [D], [], "is given twice"),
        ([P], [D], ["http://x:1=h"], "neither --prefill nor --decode"),
        ([P], [D], ["nonsense"], "write URL=HOST"),
        ([P], [D], ["http://d:8200="], "write URL=HOST"),
    ],
)
def test_what_does_not_hold_together(prefill: list[str], decode: list[str], kv_hosts: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("+", r"\+")):
        from_options(prefill, decode, kv_hosts)


@pytest.mark.parametrize(
    ("hosts", "ports", "urls"),
    [
        ([], [], []),
        (["a"], [], ["http://a:8100"]),
        ([], ["1"], ["http://localhost:1"]),
        (["a"], ["1", "2"], ["http://a:1", "http://a:2"]),
        (["a b", "c"], ["1"], ["http://a:1", "http://b:1", "http://c:1"]),
        (["a,b"], ["1,2"], ["http://a:1", "http://b:2"]),
        (["::1"], ["1"], ["http://[::1]:1"]),
    ],
)
def test_hosts_and_ports(hosts: list[str], ports: list[str], urls: list[str]) -> None:
    assert from_hosts("prefiller", hosts, ports, 8100) == urls


@pytest.mark.parametrize(("hosts", "ports"), [(["a", "b"], ["1", "2", "3"]), (["a"], ["x"]), (["a"], ["70000"])])
def test_hosts_and_ports_that_do_not_fit(hosts: list[str], ports: list[str]) -> None:
    with pytest.raises(UsageError, match="--prefiller-port"):
        from_hosts("prefiller", hosts, ports, 8100)
