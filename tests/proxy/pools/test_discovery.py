"""A running proxy whose pools come from a file, a name and pods, and change while it runs."""

import asyncio
import os
from pathlib import Path

import pytest
import yaml

from neuron_pd.errors import UsageError
from neuron_pd.proxy.app import Proxy
from neuron_pd.proxy.engines import Role
from neuron_pd.proxy.http import Origin
from neuron_pd.proxy.pools.kubernetes import Access, Kubernetes
from neuron_pd.proxy.pools.names import Names
from neuron_pd.proxy.settings import Listen, Pools, Settings, Watch
from tests.fakes.engine import FakeEngine
from tests.fakes.kubernetes import FakeKubernetes
from tests.proxy.conftest import until


def settings(pools: Pools) -> Settings:
    return Settings(pools, listen=Listen(port=0, drain=0.0), watch=Watch(interval=0.2))


def pools_text(prefill: list[FakeEngine], decode: list[FakeEngine]) -> str:
    return yaml.safe_dump({"prefill": [one.url for one in prefill], "decode": [one.url for one in decode]})


def usable(proxy: Proxy, role: Role) -> set[str]:
    return {engine.url for engine in proxy.engines.every if engine.role is role and engine.usable}


@pytest.mark.slow
async def test_a_file_that_changes_and_one_that_is_bad(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    async with FakeEngine("prefill") as p, FakeEngine("decode") as d1, FakeEngine("decode") as d2:
        file.write_text(pools_text([p], [d1]))
        async with Proxy(settings(Pools(file=file, linger=0.0))) as proxy:
            assert (usable(proxy, Role.PREFILL), usable(proxy, Role.DECODE)) == ({p.url}, {d1.url})
            file.write_text(pools_text([p], [d2]))
            await until(lambda: usable(proxy, Role.DECODE) == {d2.url})
            file.write_text("decode: [nonsense")
            await until(lambda: proxy.roster.problems)
            ((source, what),) = proxy.roster.problems.items()
            assert source == str(file)
            assert "is not YAML" in what
            assert usable(proxy, Role.DECODE) == {d2.url}
            # The same bytes again, so only the signal can tell.
            before = file.stat()
            file.write_text(pools_text([p], [d1]))
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
            proxy.discovery.reload()
            await until(lambda: usable(proxy, Role.DECODE) == {d1.url})
            assert not proxy.roster.problems


async def test_a_bad_file_at_start_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "pools.yaml"
    file.write_text("prefill: 3")
    with pytest.raises(UsageError, match="prefill must be a list"):
        await Proxy(settings(Pools(file=file))).__aenter__()


async def test_names_that_resolve_to_other_addresses() -> None:
    """Loopback addresses stand for machines; the engines listen on one port of both."""
    async with FakeEngine("prefill") as p, FakeEngine("decode") as d:
        addresses = ["127.0.0.1"]

        async def resolve(host: str, port: int) -> list[str]:
            if not addresses:
                raise OSError("no address")
            return list(addresses)

        names = tuple(
            Names(role, Origin("engines.svc", engine.port), 0.05, resolve)
            for role, engine in ((Role.PREFILL, p), (Role.DECODE, d))
        )
        async with Proxy(settings(Pools(sources=names, linger=0.0))) as proxy:
            assert usable(proxy, Role.DECODE) == {d.url}
            addresses.clear()
            await until(lambda: len(proxy.roster.problems) == 2)
            assert usable(proxy, Role.DECODE) == {d.url}


async def test_pods_come_and_go_while_turns_run(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("service-account")
    (tmp_path / "namespace").write_text("serving")
    async with FakeKubernetes() as api, FakeEngine("prefill") as p, FakeEngine("decode") as d:
        await api.apply("p-0", "prefill", ports=[{"containerPort": p.port}])
        source = Kubernetes("", "", Access(api.url, tmp_path))
        async with Proxy(settings(Pools(sources=(source,)))) as proxy:
            assert usable(proxy, Role.PREFILL) == {p.url}
            await api.apply("d-0", "decode", ports=[{"containerPort": d.port}])
            await until(lambda: usable(proxy, Role.DECODE) == {d.url})
            await api.apply("d-0", "decode", ports=[{"containerPort": d.port}], deleting=True)
            await until(lambda: not usable(proxy, Role.DECODE))
            assert proxy.engines.holder(d.url) is not None


async def test_a_file_that_names_a_source_and_then_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    file = tmp_path / "pools.yaml"
    file.write_text("kubernetes: {namespace: serving}\n")
    async with Proxy(settings(Pools(file=file))) as proxy:
        assert ["not in a Kubernetes pod" in what for what in proxy.roster.problems.values()] == [True]
        file.write_text("{}\n")
        await until(lambda: not proxy.roster.problems)
        await asyncio.sleep(0)
        assert not proxy.engines.every
