"""The proxy's pools and choice as a person types them."""

from pathlib import Path
from typing import Any

import pytest

from neuron_pd.cli.proxy import command
from neuron_pd.cli.proxy.engines import choice, pools
from neuron_pd.errors import UsageError
from neuron_pd.proxy.engines import Balance, Role
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.pools.kubernetes import Kubernetes
from neuron_pd.proxy.pools.names import Names
from neuron_pd.proxy.settings import Choice, Pools
from neuron_pd.proxy.ways import Direct


def typed(*arguments: str) -> dict[str, Any]:
    return command.make_context("proxy", list(arguments)).params


def origins(found: Pools) -> tuple[list[str], list[str]]:
    return [one.origin.url for one in found.prefill], [one.origin.url for one in found.decode]


def test_addresses_and_names_side_by_side() -> None:
    found: Pools = pools.of(
        typed("--prefill", "dns+http://p.svc:8100", "--decode", "http://d:8200", "--decode", "dns+http://d.svc:8200")
    )
    assert origins(found) == ([], ["http://d:8200"])
    assert found.sources == (
        Names(Role.PREFILL, Origin("p.svc", 8100)),
        Names(Role.DECODE, Origin("d.svc", 8200)),
    )


def test_a_file_or_pods_need_no_addresses(tmp_path: Path) -> None:
    found: Pools = pools.of(typed("--pools", str(tmp_path / "pools.yaml"), "--linger-seconds", "5"))
    assert (origins(found), found.file, found.linger) == (([], []), tmp_path / "pools.yaml", 5.0)
    found = pools.of(typed("--kubernetes", "--kubernetes-namespace", "serving", "--kubernetes-selector", "app=qwen"))
    assert found.sources == (Kubernetes("serving", "app=qwen"),)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prefill", "dns+http://p.svc:8100"], "no decode engine given"),
        (["--prefill", "dns+https://p.svc:1", "--decode", "http://d:1"], "NAME:PORT only"),
        (["--kubernetes-namespace", "x", "--prefill", "http://p:1", "--decode", "http://d:1"], "add --kubernetes"),
        (["--kubernetes", "--kubernetes-namespace", "a b"], "is not a namespace"),
    ],
)
def test_what_does_not_go_together(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        pools.of(typed(*arguments))


def test_choice() -> None:
    assert choice.of(typed()) == Choice(Balance(32, 1.5), Direct.OFF)
    arguments = ("--balance-abs-threshold", "4", "--balance-rel-threshold", "2", "--direct", "auto")
    assert choice.of(typed(*arguments)) == Choice(Balance(4, 2.0), Direct.AUTO)
